"""The same ids as `ids`, as a Spark column."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgstream_dagster.search.ids import HASHED, MAX_BYTES, OF_NULL


def document_id(key: Column) -> Column:
    """
    The id of each row, from its key.

    Shape:
        key: array<string>, as in a fold.
    """
    is_single = F.size(key) == 1
    escaped = F.array_join(F.transform(key, _escaped), "|")
    joined = F.when(is_single, key[0]).otherwise(escaped)
    fits = F.octet_length(joined).between(1, MAX_BYTES) & ~F.startswith(joined, F.lit(HASHED))
    hashed = F.concat(F.lit(HASHED), F.sha2(joined, 256))
    is_null = is_single & key[0].isNull()
    return F.when(is_null, F.lit(OF_NULL)).when(fits, joined).otherwise(hashed)


def _escaped(value: Column) -> Column:
    backslash, bar = F.lit("\\"), F.lit("|")
    escaped = F.replace(value, backslash, F.lit(r"\\"))
    return F.coalesce(F.replace(escaped, bar, F.lit(r"\|")), F.lit(r"\N"))
