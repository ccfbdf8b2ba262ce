"""What a comparison of typed tables says of itself."""

from __future__ import annotations

from pgstream_dagster.cli import render
from pgstream_dagster.errors import TypedNotReconciled
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.upkeep.reconcile_tables import TypedReconciliations


def test_nothing_that_was_compared_is_not_equal() -> None:
    done = TypedReconciliations(1, Lsn(0), ())
    assert not done.identical
    assert "no typed table" in render.typed_reconciliation(done)
    assert "nothing was compared" in str(TypedNotReconciled([]))
