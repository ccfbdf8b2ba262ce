"""When a connection has a former name of a partition tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.capture.tree_names import TreeNames
from pgstream_dagster.errors import TreeRenamed
from pgstream_dagster.lsn import Lsn
from tests.unit.capture.test_recopier import OID, TABLE

TREE = replace(TABLE, kind="p", name="renamed")
FORMER = {OID: "public.t"}.get


def test_a_former_name_asks_for_a_new_connection_once_the_stream_is_past_the_rename() -> None:
    names = TreeNames()
    names.read([TREE], Lsn(100))
    names.require_described(Lsn(99), FORMER)
    with pytest.raises(TreeRenamed, match=r"'public\.t' is 'public\.renamed'"):
        names.require_described(Lsn(100), FORMER)
    names.require_described(Lsn(200), FORMER)  # once per look at the catalog
    names.read([TREE], Lsn(300))
    with pytest.raises(TreeRenamed):
        names.require_described(Lsn(300), FORMER)


def test_a_tree_without_rows_or_with_its_name_and_an_ordinary_table_are_left_alone() -> None:
    names = TreeNames()
    names.require_described(Lsn(100), FORMER)
    names.read([TREE], Lsn(100))
    names.require_described(Lsn(100), {}.get)
    names.read([replace(TREE, name="t")], Lsn(100))
    names.require_described(Lsn(100), FORMER)
    names.read([replace(TREE, kind="r")], Lsn(100))
    names.require_described(Lsn(100), FORMER)
