"""The ids of `ids`, as a column."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgstream_dagster.search.ids import HASHED, MAX_BYTES, OF_NULL


def document_id(key: Column) -> Column:
    """
    The id of each row, from its key.

    Shape:
        key: array<string>, as a fold has it.
    """
    alone = F.size(key) == 1
    joined = F.array_join(F.transform(key, _escaped), "|")
    said = F.when(alone, key[0]).otherwise(joined)
    fits = F.octet_length(said).between(1, MAX_BYTES) & ~F.startswith(said, F.lit(HASHED))
    hashed = F.concat(F.lit(HASHED), F.sha2(said, 256))
    return F.when(alone & key[0].isNull(), F.lit(OF_NULL)).otherwise(
        F.when(fits, said).otherwise(hashed)
    )


def _escaped(value: Column) -> Column:
    backslash, bar = F.lit("\\"), F.lit("|")
    escaped = F.replace(value, backslash, F.lit(r"\\"))
    return F.coalesce(F.replace(escaped, bar, F.lit(r"\|")), F.lit(r"\N"))
