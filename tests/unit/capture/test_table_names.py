"""When a connection has a former name of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.capture.table_names import TableNames
from pgstream_dagster.errors import TableRenamed
from pgstream_dagster.lsn import Lsn
from tests.support.harness.published_table import OID, TABLE

RENAMED = replace(TABLE, name="renamed")
FORMER = {OID: "public.t"}.get


def test_a_former_name_asks_for_a_new_connection_once_the_stream_is_past_the_rename() -> None:
    names = TableNames()
    names.read([RENAMED], Lsn(100))
    names.require_described(Lsn(99), FORMER)
    with pytest.raises(TableRenamed, match=r"'public\.t' was renamed to 'public\.renamed'"):
        names.require_described(Lsn(100), FORMER)
    names.require_described(Lsn(200), FORMER)  # once per look at the catalog
    names.read([RENAMED], Lsn(300))
    with pytest.raises(TableRenamed):
        names.require_described(Lsn(300), FORMER)


def test_a_table_without_rows_or_with_its_name_is_left_alone() -> None:
    names = TableNames()
    names.require_described(Lsn(100), FORMER)
    names.read([RENAMED], Lsn(100))
    names.require_described(Lsn(100), {}.get)
    names.read([replace(RENAMED, name="t")], Lsn(100))
    names.require_described(Lsn(100), FORMER)
