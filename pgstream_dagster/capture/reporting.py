"""What a stream does with reports of DDL, and since when it can rely on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from pgstream_dagster.changelog.ledger import Ledger
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.ddl import DdlReport, DdlTable, continued
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.source import catalog, schema_triggers
from pgstream_dagster.source.connect import Session
from pgstream_dagster.source.interrupt import ANSWER_SECONDS, limited
from pgstream_dagster.source.query import current_lsn, query

REPORTED: Final = "ddl reported"
"""Kind of the ledger's fact that every DDL is reported from a position on."""

Triggers: TypeAlias = tuple[int, ...]
"""Versions of the event triggers and of what they call; empty unless both fire."""


class Reporting(Protocol):
    """What decoding needs to know of reports."""

    def is_ours(self, report: DdlReport) -> bool:
        """Whether our event triggers wrote a report, and not another role."""
        ...

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

    def is_contradicted(self, schema: TableSchema, xid: int) -> bool:
        """Whether the catalog says that a table had other columns when a transaction began."""
        ...


class NoReports:
    """Of a source without event triggers of ours: no report is for us."""

    def is_ours(self, report: DdlReport) -> bool:
        """None is."""
        del report
        return False

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

    def is_contradicted(self, schema: TableSchema, xid: int) -> bool:
        """It is not asked."""
        del schema, xid
        return False


@dataclass(frozen=True, slots=True)
class ReportedSince:
    """
    Since when the source reports every DDL, which the ledger keeps; for one thread.

    Event triggers that were made, altered or disabled have other versions than those recorded, also
    when they were enabled again: reports are then complete from now on.
    """

    ledger: Ledger
    epoch: int
    connection: Session
    answer_seconds: float = ANSWER_SECONDS
    _tokens: set[str] = field(default_factory=set[str])  # that were ours

    def position(self) -> Lsn | None:
        """
        From where on there is a report of every DDL, up to now; `None`: there is not.

        Transactions that ran while the triggers were made may have run DDL before, and commit
        later: until they have ended, reports are not complete.
        """
        triggers = self._triggers()
        if not triggers:
            return None
        last = self._last(triggers)
        if last is None:
            last = self._record(triggers, {"unreported_before": self._snapshot()[1]})
        if "since" in last:
            return Lsn.parse(last["since"])
        if self._snapshot()[0] < last["unreported_before"]:
            return None
        with limited(self.connection, self.answer_seconds):
            since = current_lsn(self.connection)
        self._record(triggers, {"since": str(since)})
        return since

    def recorded(self) -> Lsn | None:
        """The same, for people: `None` also if a stream has not noticed the triggers yet."""
        triggers = self._triggers()
        last = self._last(triggers) if triggers else None
        return Lsn.parse(last["since"]) if last is not None and "since" in last else None

    def begin_again(self, since: Lsn) -> None:
        """Record that reports are complete from a position on, if they are; durable then."""
        triggers = self._triggers()
        last = self._last(triggers)
        if last is not None and "since" in last and since > Lsn.parse(last["since"]):
            self._record(triggers, {"since": str(since)})

    def _last(self, triggers: Triggers) -> Mapping[str, Any] | None:
        """What the ledger says of these triggers, if they are those that it spoke of last."""
        facts = [facts for epoch, facts in self.ledger.facts(REPORTED) if epoch == self.epoch]
        return facts[-1] if facts and tuple(facts[-1]["triggers"]) == triggers else None

    def _record(self, triggers: Triggers, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        recorded = {"triggers": list(triggers), **facts}
        self.ledger.record(REPORTED, self.epoch, recorded)
        return recorded

    def _snapshot(self) -> tuple[int, int]:
        """The oldest transaction that runs, and the next one to begin."""
        with limited(self.connection, self.answer_seconds):
            [(snapshot,)] = query(self.connection, "source/current_snapshot")
        xmin, xmax, _ = snapshot.split(":")
        return int(xmin), int(xmax)

    def wrote(self, token: str) -> bool:
        """Whether a report with this token is of our event triggers, as they are or were."""
        if token not in self._tokens and self._state().wrote(token):
            self._tokens.add(token)
        return token in self._tokens

    def _triggers(self) -> Triggers:
        state = self._state()
        return state.versions if state.fires else ()

    def _state(self) -> schema_triggers.State:
        with limited(self.connection, self.answer_seconds):
            return schema_triggers.state(self.connection)


@dataclass(frozen=True, slots=True)
class SourceReports:
    """
    Reports of one pipeline's source.

    `modified` is what the modifiers of the source make of a version. With `hides_values` nothing is
    stored that may be a value of a row.
    """

    publication: str
    since: ReportedSince
    modified: Callable[[TableSchema], TableSchema]
    hides_values: bool

    def is_ours(self, report: DdlReport) -> bool:
        """By its token."""
        return self.since.wrote(report.token)

    def schema(self, table: DdlTable, earlier: TableSchema | None) -> TableSchema | None:
        """The version that the publication shows, as it follows from the one before."""
        schema = table.schema(self.since.epoch, self.publication)
        return None if schema is None else self.modified(continued(schema, earlier))

    def shown(self, report: DdlReport) -> DdlReport:
        """
        The report, with the columns that are published.

        Where modifiers must see values, without the texts that a value may be in.
        """
        if report.table is None:
            return report
        columns = report.table.shown(self.publication)
        table = msgspec.structs.replace(report.table, columns=columns)
        if not self.hides_values:
            return msgspec.structs.replace(report, table=table)
        return msgspec.structs.replace(report, text=None, table=table.without_values())

    def missed(self, at: Lsn) -> None:
        """Versions from before this position may no longer hold."""
        self.since.begin_again(Lsn(at + 1))

    def exact_since(self) -> Lsn | None:
        """As recorded, if the event triggers are those of then."""
        return self.since.position()

    def is_contradicted(self, schema: TableSchema, xid: int) -> bool:
        """As the catalog is now."""
        with limited(self.since.connection, self.since.answer_seconds):
            return catalog.contradicts(self.since.connection, schema, xid)
