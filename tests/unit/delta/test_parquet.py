"""Data files hold the rows they were given, and say what the log must know of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgstream_dagster.delta import parquet, uri
from pgstream_dagster.schema import layout
from tests.support.plugins.lake import changes


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return uri.absolute(tmp_path)


def local(file: parquet.DataFile) -> Path:
    path = uri.local(file.path)
    assert path is not None
    return path


def test_rows_come_back_as_they_were(folder: str):
    table = changes(5, end_lsn=900, old_key=[None, [], ["a", None], ["ä"], None])
    file = parquet.write(table, folder)
    assert parquet.read([file.path], layout.CHANGES).equals(table)
    assert (file.rows, file.size) == (5, local(file).stat().st_size)


def test_an_image_keeps_what_was_not_sent_apart_from_null(folder: str):
    images = [None, [], [("id", "1"), ("note", None)], [("id", ""), ("note", "\x01\n")]]
    file = parquet.write(changes(4, end_lsn=900, before=images), folder)
    assert parquet.read([file.path], layout.CHANGES).column("before").to_pylist() == images


def test_statistics_bound_what_readers_skip_files_by(folder: str):
    zebra = changes(2, end_lsn=500, relation="zebra", relation_id=[7, 9])
    ant = changes(1, end_lsn=700, relation="ant", relation_id=[8])
    stats = json.loads(parquet.write(pa.concat_tables([zebra, ant]), folder).stats_json)
    assert stats["numRecords"] == 3
    least, greatest = stats["minValues"], stats["maxValues"]
    assert least.keys() == greatest.keys() == set(layout.BOUNDS)
    assert (least["relation"], greatest["relation"]) == ("ant", "zebra")
    assert (least["relation_id"], greatest["relation_id"]) == (7, 9)
    assert (least["commit_lsn"], greatest["commit_lsn"]) == (492, 692)
    assert stats["nullCount"].keys() == set(layout.CHANGES.names)
    assert (stats["nullCount"]["after"], stats["nullCount"]["old_key"]) == (0, 3)


def test_a_column_of_nulls_has_no_bounds(folder: str):
    stats = json.loads(
        parquet.write(changes(2, end_lsn=9, namespace=[None] * 2), folder).stats_json
    )
    assert "namespace" not in stats["minValues"]
    assert stats["nullCount"]["namespace"] == 2


def test_a_file_written_in_pieces_is_described_as_a_whole(folder: str):
    with parquet.FileWriter(folder, layout.CHANGES) as writer:
        writer.write(changes(3, end_lsn=100))
        writer.write(changes(4, end_lsn=200))
    file = writer.written()
    stats = json.loads(file.stats_json)
    assert file.rows == stats["numRecords"] == 7
    assert (stats["minValues"]["commit_lsn"], stats["maxValues"]["commit_lsn"]) == (92, 192)
    assert file.size == local(file).stat().st_size


def test_files_are_lean(folder: str):
    """zstd, no Arrow schema, statistics of the leading columns only."""
    file = pq.ParquetFile(local(parquet.write(changes(3, end_lsn=9), folder)))
    assert file.schema_arrow.metadata is None
    group = file.metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["commit_lsn"].is_stats_set
    assert not columns["after.key_value.value"].is_stats_set
    assert "RLE_DICTIONARY" in columns["after.key_value.key"].encodings
    assert "RLE_DICTIONARY" not in columns["after.key_value.value"].encodings


def test_a_file_that_is_gone_is_named_so(folder: str):
    file = parquet.write(changes(1, end_lsn=9), folder)
    local(file).unlink()
    with pytest.raises(FileNotFoundError):
        parquet.read([file.path], layout.CHANGES)


def test_no_files_are_no_rows():
    assert parquet.read([], layout.CHANGES).equals(layout.no_changes())


def test_a_reader_of_large_values_holds_a_few_at_once(folder: str):
    """Parquet decompresses a page as a whole, and a page was 1,024 values."""
    images = [[("id", str(n)), ("note", "x" * (100 << 10))] for n in range(600)]
    file = parquet.write(changes(600, end_lsn=900, after=images), folder)
    del images
    default = pa.default_memory_pool()
    measured = pa.proxy_memory_pool(default)
    pa.set_memory_pool(measured)
    try:
        count = sum(piece.num_rows for piece in parquet.pieces(file.path, layout.CHANGES))
    finally:
        pa.set_memory_pool(default)
    assert count == 600
    assert (measured.max_memory() or 0) < 5 * parquet.PIECE_BYTES
