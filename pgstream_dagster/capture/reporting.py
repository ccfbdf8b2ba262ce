"""What a stream does with reports of DDL, and since when it can rely on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlColumn, DdlReport, DdlTable, continued
from pgstream_dagster.schema.table import TableSchema

REPORTED: Final = "ddl reported"
"""Kind of the ledger's fact that every DDL is reported from a position on."""

Triggers = tuple[int, ...]
"""Versions of the event triggers and of what they call; empty unless both fire."""


class Reporting(Protocol):
    """What decoding needs to know of reports."""

    def schema(self, table: DdlTable, earlier: TableSchema | None) -> TableSchema | None:
        """The version that a reported table has, as the log has it; `None`: not published."""
        ...

    def shown(self, report: DdlReport) -> DdlReport:
        """What may be stored of a report."""
        ...

    def missed(self, at: Lsn) -> None:
        """DDL was not reported in the transaction that commits here; durable when it returns."""
        ...

    def exact_since(self) -> Lsn | None:
        """Since when every DDL is reported, up to now; `None`: it is not."""
        ...


class NoReports:
    """Of a source without event triggers of ours: no report is for us."""

    def schema(self, table: DdlTable, earlier: TableSchema | None) -> TableSchema | None:
        """Of no table."""
        del table, earlier
        return None

    def shown(self, report: DdlReport) -> DdlReport:
        """All of it."""
        return report

    def missed(self, at: Lsn) -> None:
        """Nothing follows from it."""

    def exact_since(self) -> Lsn | None:
        """Never."""
        return None


@dataclass(frozen=True, slots=True)
class SourceReports:
    """
    Reports of one pipeline's source; for one thread.

    `triggers` queries the event triggers, and `position` the end of the WAL; `modified` is what the
    modifiers of the source make of a version. With `hides_values` nothing is stored that may be a
    value of a row.
    """

    epoch: int
    publication: str
    ledger: Ledger
    triggers: Callable[[], Triggers]
    position: Callable[[], Lsn]
    modified: Callable[[TableSchema], TableSchema]
    hides_values: bool

    def schema(self, table: DdlTable, earlier: TableSchema | None) -> TableSchema | None:
        """The version that the publication shows, as it follows from the one before."""
        schema = table.schema(self.epoch, self.publication)
        return None if schema is None else self.modified(continued(schema, earlier))

    def shown(self, report: DdlReport) -> DdlReport:
        """The report, without the texts that a value may be in where modifiers must see values."""
        if not self.hides_values or report.table is None:
            return report
        columns = tuple(map(_without_values, report.table.columns))
        table = msgspec.structs.replace(report.table, columns=columns)
        return msgspec.structs.replace(report, text=None, table=table)

    def missed(self, at: Lsn) -> None:
        """Record that versions before this position may no longer hold."""
        self._record(self.triggers(), Lsn(at + 1))

    def exact_since(self) -> Lsn | None:
        """
        As the ledger has it, if the triggers are those of then.

        Triggers that were made, altered or disabled since have other versions; also those that were
        enabled again. Reports are then complete from now on.
        """
        triggers = self.triggers()
        if not triggers:
            return None
        last = self._last()
        if last is None or tuple(last["triggers"]) != triggers:
            return self._record(triggers, self.position())
        return Lsn.parse(last["since"])

    def _record(self, triggers: Triggers, since: Lsn) -> Lsn:
        facts = {"triggers": list(triggers), "since": str(since)}
        self.ledger.record(REPORTED, self.epoch, facts)
        return since

    def _last(self) -> dict[str, Any] | None:
        facts = [facts for epoch, facts in self.ledger.facts(REPORTED) if epoch == self.epoch]
        return facts[-1] if facts else None


def _without_values(column: DdlColumn) -> DdlColumn:
    return msgspec.structs.replace(column, default=None, missing=None)
