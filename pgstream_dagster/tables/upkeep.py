"""Keep the files of typed tables few and large, and remove those that no version needs."""

from __future__ import annotations

from pyarrow import fs
from pyspark.sql import SparkSession

from pgstream_dagster.changelog.optimize import vacuum
from pgstream_dagster.delta import uri
from pgstream_dagster.delta.entries import LOG_FOLDER, version_of_entry
from pgstream_dagster.errors import NotClustered
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.tables.clustering import chosen, cluster
from pgstream_dagster.tables.target import Target


def optimize_tables(pipeline: Pipeline, spark: SparkSession) -> int:
    """
    Rewrite the small files of every typed table, and what deletion vectors mark; how many tables.

    A merge waits for it, table by table. Afterwards replaced files older than a week are removed.

    Raises:
        NotClustered: of one table; all of them are done, but for that.
    """
    names, clusterings = table_names(pipeline.lake.typed_folder), chosen(pipeline)
    refused: NotClustered | None = None
    for name in names:
        target = Target(pipeline.lake.typed_table(name), spark, pipeline.gateway())
        with target.held():
            try:
                cluster(target, clusterings.get(name))
            except NotClustered as error:
                refused = error
            spark.sql(f"OPTIMIZE {target.name}")
        vacuum(target.uri, spark)
    if refused is not None:
        raise refused
    return len(names)


def table_names(folder: str) -> list[str]:
    """The Delta tables in a folder; the making of one may have ended before its first version."""
    filesystem, path = uri.filesystem(folder)

    def files(place: str) -> list[fs.FileInfo]:
        return filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True))

    return sorted(
        table.base_name
        for table in files(path)
        if table.type is fs.FileType.Directory
        and any(
            version_of_entry(f.base_name) is not None for f in files(f"{table.path}/{LOG_FOLDER}")
        )
    )
