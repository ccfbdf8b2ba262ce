"""Where a metastore has typed tables: the address, the names, and names that two would have."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.config import parse
from pgstream_dagster.config.metastore import MetastoreConfig, is_address
from pgstream_dagster.delta.jvm import JvmSettings
from pgstream_dagster.delta.metastore import Metastore
from pgstream_dagster.errors import (
    InvalidPipeline,
    InvalidSetting,
    MetastoreNameTaken,
    MetastoreRefused,
    MetastoreUnavailable,
    MissingSetting,
)
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables import registration
from pgstream_dagster.tables.registration import Place, metastore_address


def pipeline(folder: Path, metastore: str, **environment: str) -> Pipeline:
    config = parse(f"pipeline: shop\ntables: {{metastore: {metastore}}}")
    lake = Lake(str(folder))
    return Pipeline(config, "", lake, JvmSettings(), folder, environment=environment)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("public.orders", "public_orders"),
        ("public.Many~20Types", "public_many_20types"),
        ("public.orders__history", "public_orders__history"),
        ("public.chosen", "mine"),
        ("p." + "x" * 200, "p_" + "x" * 126),
    ],
)
def test_a_name_is_one_for_hive(table: str, name: str) -> None:
    config = MetastoreConfig(
        uri="thrift://h:9083", database="lake", names={"public.chosen": "mine"}
    )
    assert config.name_of(table) == name


@pytest.mark.parametrize(
    ("metastore", "problem"),
    [
        ("{database: lake}", "needs either 'uri' or 'uri_from'"),
        ("{uri: 'thrift://h:1', uri_from: X, database: lake}", "needs either 'uri' or 'uri_from'"),
        ("{uri: 'http://h:1', database: lake}", "must be thrift://host:port"),
        ("{uri: 'thrift://h:1', database: My-Lake}", "lower-case letters, digits or _"),
        ("{uri: 'thrift://h:1', database: a, names: {public.t: a.b}}", "digits or _"),
        ("{uri: 'thrift://h:1'}", "tables.metastore.database: is required"),
    ],
)
def test_a_mistake_is_refused(metastore: str, problem: str) -> None:
    with pytest.raises(InvalidPipeline, match=problem):
        parse(f"pipeline: shop\ntables: {{metastore: {metastore}}}")


def test_the_address_is_in_the_file_or_in_the_variable_that_it_names(tmp_path: Path) -> None:
    written = pipeline(tmp_path, "{uri: 'thrift://h:1', database: lake}")
    assert metastore_address(written) == "thrift://h:1"
    named = "{uri_from: HIVE, database: lake}"
    assert metastore_address(pipeline(tmp_path, named, HIVE="thrift://a:1,thrift://b:2"))
    with pytest.raises(MissingSetting):
        metastore_address(pipeline(tmp_path, named))
    with pytest.raises(InvalidSetting):
        metastore_address(pipeline(tmp_path, named, HIVE="h:1"))
    assert not is_address("thrift://user:secret@h:1")


def test_tables_with_one_name_are_refused_and_no_others() -> None:
    places = {n: Place(m, n) for n, m in [("a.b_c", "a_b_c"), ("a_b.c", "a_b_c"), ("t", "t")]}
    due = {name: places[name] for name in ("a_b.c", "t")}
    [error] = registration._clashes(due, places, "lake")
    assert (error.table, error.name) == ("a_b.c", "lake.a_b_c")
    assert "'a.b_c'" in str(error)


class Answers:
    """A metastore that has other answers for some names."""

    def __init__(self, **answers: Exception) -> None:
        self.answers = answers

    def register(self, name: str, table: str, location: str) -> bool:
        del table, location
        if name in self.answers:
            raise self.answers[name]
        return True


def test_a_table_that_is_refused_keeps_no_other_from_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    due, done = {n: Place(n, n) for n in ("a", "b", "c", "d")}, dict[str, Place]()
    refused = MetastoreRefused("lake.a", "a", "MetaException: no such folder")
    name_taken = MetastoreNameTaken("lake.b", "b", "another one")
    metastore = cast("Metastore", Answers(a=refused, b=name_taken))
    assert registration._registered(metastore, due, done) == [name_taken]
    assert set(done) == {"c", "d"}
    assert "refuses to register it as 'lake.a': MetaException" in caplog.text
    away = cast("Metastore", Answers(c=MetastoreUnavailable("thrift://h:1", "away")))
    done.clear()
    with pytest.raises(MetastoreUnavailable):
        registration._registered(away, due, done)
    assert set(done) == {"a", "b"}
