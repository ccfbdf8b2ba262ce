"""
Rows of the log that only Spark can gather, as files in order.

They are those of a copy, of a difference, or of a part of the log whose entries were cleaned up.

One job writes them; reading them takes little memory. A reader that is killed leaves its folder,
and removes it when it starts again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from pyarrow import fs
from pyspark.sql import DataFrame

from pgstream_dagster.changelog.lake import Lake
from pgstream_dagster.delta import uri
from pgstream_dagster.schema.layout import CHANGES


@contextmanager
def sorted_files(
    rows: DataFrame, lake: Lake, reader: str, order: Sequence[str]
) -> Generator[list[str]]:
    """
    The addresses of files that hold these rows in this order; removed with the end of the block.

    `reader` names the folder: a reader has one at a time.
    """
    folder = uri.child(lake.sorted_rows, reader)
    remove(lake, reader)
    columns = rows.select(*CHANGES.names).orderBy(*order)
    columns.write.mode("overwrite").option("compression", "zstd").parquet(folder)
    try:
        yield _files(folder)
    finally:
        remove(lake, reader)


def remove(lake: Lake, reader: str) -> None:
    """Remove the files of a reader, if there are any."""
    filesystem, there = uri.filesystem(uri.child(lake.sorted_rows, reader))
    with suppress(FileNotFoundError):
        filesystem.delete_dir(there)


def _files(folder: str) -> list[str]:
    filesystem, there = uri.filesystem(folder)
    listed = filesystem.get_file_info(fs.FileSelector(there))
    names = sorted(file.base_name for file in listed if file.base_name.startswith("part-"))
    return [uri.child(folder, name) for name in names]
