"""What an error of the engine means to Dagster."""

from __future__ import annotations

import dagster as dg
import pytest

from pgstream_dagster import errors
from pgstream_dagster.assets.errors import as_dagster, as_dagster_errors
from pgstream_dagster.lsn import Lsn


def test_what_waiting_mends_is_tried_again():
    raised = as_dagster(errors.Unreachable("db:5432/shop", "refused"))
    assert isinstance(raised, dg.RetryRequested)


def test_what_a_person_must_mend_fails_and_says_the_remedy_first():
    raised = as_dagster(errors.SlotLost("pgstream_shop", Lsn.parse("0/11025D40"), "wal_removed"))
    assert isinstance(raised, dg.Failure)
    assert raised.allow_retries is False
    assert list(raised.metadata) == ["remedy", "error", "slot", "confirmed_lsn", "reason"]
    assert "pgstream resnapshot" in str(raised.metadata["remedy"].value)
    assert raised.metadata["slot"].value == "pgstream_shop"


def test_lists_of_facts_stay_lists():
    raised = as_dagster(errors.PreflightFailed(["wal_level is replica", "no free slot"]))
    assert raised.metadata["findings"].value == ["wal_level is replica", "no free slot"]


def test_cause_is_kept_and_other_errors_pass():
    with pytest.raises(dg.Failure) as raised, as_dagster_errors():
        raise errors.SlotMissing("s")
    assert isinstance(raised.value.__cause__, errors.SlotMissing)
    with pytest.raises(ZeroDivisionError), as_dagster_errors():
        raise ZeroDivisionError
