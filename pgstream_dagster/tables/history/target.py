"""The Delta table of a history: as a typed table (`tables.target`), with another merge."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.tables.columns import quoted
from pgstream_dagster.tables.history.columns import (
    ENDED_BY,
    FROM_EPOCH,
    FROM_LSN,
    FROM_ORDINAL,
    IS_CURRENT,
    KEY_TEXTS,
    TO,
    TO_EPOCH,
    TO_LSN,
    TO_ORDINAL,
    HistoryLayout,
)
from pgstream_dagster.tables.history.increment import IS_FORMER
from pgstream_dagster.tables.target import Target

_SAME: Final = (KEY_TEXTS, FROM_EPOCH, FROM_LSN, FROM_ORDINAL)

_ENDS: Final = (TO_EPOCH, TO_LSN, TO_ORDINAL, TO, IS_CURRENT, ENDED_BY)


class HistoryTarget(Target):
    """The history at a URI; one thread uses it, with a session of its own."""

    def extend(self, rows: DataFrame, layout: HistoryLayout, app: str, position: Lsn) -> None:
        """
        Add versions and end current ones, with the position in the same commit.

        No-op if the table is at the position already.

        Shape:
            rows: as `increment.added` gives them.
        """
        with self._viewed(rows) as view, self._committing(), self._as_transaction(app, position):
            self._spark.sql(_extension(self.name, view, layout)).collect()
            reach("history.merged")


def _extension(table: str, view: str, layout: HistoryLayout) -> str:
    names = [quoted(name) for name in layout.names]
    same = [f"t.{IS_CURRENT}", f"s.{IS_FORMER}", *(f"t.{name} = s.{name}" for name in _SAME)]
    clauses = [
        f"MERGE INTO {table} AS t USING {view} AS s ON {' AND '.join(same)}",
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in _ENDS)}",
        f"WHEN NOT MATCHED AND NOT s.{IS_FORMER} THEN INSERT ({', '.join(names)})",
        f"VALUES ({', '.join(f's.{name}' for name in names)})",
    ]
    return " ".join(clauses)
