"""
The contract of a sink: ordered batches of changes in, a verdict per change out.

Each sink says in its own docstring what "delivered" means. The follower calls `open` once, then
`deliver` with one batch after the other, from one thread; it stores the progress after a batch is
delivered, keeps what a target refuses, and calls `close` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.settings import required
from pgstream_dagster.sinks.held_keys import HeldKeys

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """The target does not accept this change, now or later: it becomes a dead letter."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """
    The target did not accept this change, and may later; `wait_seconds` if it said when.

    `is_behind`: it was not attempted, because of an earlier change; so this attempt does not count.
    `is_away`: the target as a whole does not accept changes, so this one is waited for without a
    limit and becomes no dead letter.
    """

    reason: str
    wait_seconds: float | None = None
    is_behind: bool = False
    is_away: bool = False


Verdict: TypeAlias = Refused | NotNow

Verdicts: TypeAlias = Mapping[int, Verdict]
"""Index in the batch -> verdict, of the changes that were not delivered; the others were."""


class CallRecord(msgspec.Struct, frozen=True):
    """One call: when (seconds since 1970), what for, how it ended. No header and no secret."""

    at: float
    message_id: str
    changes: int
    seconds: float
    outcome: str
    status: int | None = None
    reason: str = ""


class Health(msgspec.Struct, frozen=True):
    """
    What a sink must know of its last calls after a restart; times in seconds since 1970.

    `failures` and `refusals` count since the last delivery, `failing_since` and `failing_id` are of
    the first of them. `disabled` is why it makes no call, in the process `disabled_in`. `calls` are
    the newest, the last one last.
    """

    failures: int = 0
    refusals: int = 0
    failing_since: float | None = None
    failing_id: str = ""
    delivered_at: float | None = None
    disabled: str | None = None
    disabled_in: str = ""
    calls: tuple[CallRecord, ...] = ()


@runtime_checkable
class WithHealth(Protocol):
    """A sink whose health is stored with its progress."""

    def restore(self, health: Health) -> None:
        """Take what was stored; called before `open`."""
        ...

    def health(self) -> Health:
        """What is to be stored."""
        ...


class Sink(Protocol):
    """
    One target. Only one process at a time delivers for a sink.

    `keeps_cursor`: whether the target stores the cursor in one transaction with the changes. Such a
    sink commits nothing of a batch while it has a verdict on any of its changes: the batch comes
    again without those that were refused, once they are durable among the dead letters.
    """

    @property
    def keeps_cursor(self) -> bool:
        """Whether delivery is exactly once."""
        ...

    def open(self) -> str | None:
        """
        Connect, check rights and create what the sink needs; called again after an error.

        Returns the cursor of the last delivered batch if the target keeps it, in the transaction
        with the changes; `None` if it does not, or has none yet.

        Raises:
            SinkUnreachable: it is called again, with increasing back-off.
            SinkRefused: a person must act.
        """
        ...

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """
        Deliver the changes in order; durable in the target when this returns.

        Once a change of a key is not delivered, the later ones of that key in the batch are not
        attempted either, and are `NotNow` with `is_behind`. The first of the batch that is not
        delivered is behind none. Only a sink that does not keep the cursor may put off the rest of
        a batch that takes long: `is_behind`, too. It is called again at once if it delivered some.

        Raises:
            SinkUnreachable: none, some or all were delivered; the batch comes again.
            SinkRefused: the target refuses all of it for a reason that a person must remove.
        """
        ...

    def close(self) -> None:
        """Release what `open` took; never raises."""
        ...


class Modifies(Protocol):
    """What modifiers do to the tables of a sink."""

    def schema(self, schema: TableSchema) -> TableSchema:
        """The schema of the changes that come out."""
        ...

    def transformed(self, schema: TableSchema) -> Collection[str]:
        """The columns whose values they change."""
        ...


History: TypeAlias = Callable[[int], Sequence[tuple[int, TableSchema]]]
"""The versions of an epoch's tables in the log, each with the commit LSN from which it holds."""


LeavesLog: TypeAlias = Callable[[str | None], bool]
"""Of the cursor that a target keeps: whether it is of another log, which the sink leaves now."""


@runtime_checkable
class MakesTables(Protocol):
    """
    A sink that makes tables in its target, of the columns that modifiers let through.

    Rows of a copy come to it after their `copy` marker, so that it knows where a table begins.
    """

    def make_tables_of(
        self, epoch: int, modifiers: Modifies | None, history: History, leaves_log: LeavesLog
    ) -> None:
        """
        Called before `open` with the epoch of the tables that the source has now.

        `leaves_log` is asked before anything is made: it raises `OtherLog` if nothing may be.
        Where it is true, the numbers by which the log names tables are those of others now.
        """
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """
    What a sink of another package is made with, beside its settings.

    `sink` is its name in the pipeline file, for errors and for what it stores in its target.
    """

    pipeline: str
    sink: str
    environment: Mapping[str, str] = field(repr=False)

    def secret(self, variable: str) -> str:
        """
        The value of an environment variable that the settings name.

        Raises:
            MissingSetting
        """
        return required(self.environment, variable, f"a secret of sink {self.sink!r}")


BEHIND: Final = "an earlier change of its key was not delivered"

REFUSED_IN_A_ROW: Final = 1_000
"""Without one delivered change in between: then it is the target or the configuration."""


def deliver_each(batch: ChangeBatch, send: Callable[[Change], Verdict | None]) -> Verdicts:
    """
    Deliver the changes of a batch one after the other, with the order per key that `deliver` wants.

    `send` delivers one change, and returns `None` or why it did not. It is not called for a later
    change of the same row, or of the same table where that has no key. Nor is it called for any
    more once so many were refused in a row that the sink is to stop.
    """
    return deliver_items(batch.changes, batch.changes, send)


def deliver_items(
    changes: Sequence[Change], items: Iterable[T], send: Callable[[T], Verdict | None]
) -> Verdicts:
    """As `deliver_each`; `send` gets what was made of a change, which comes in their order."""
    verdicts: dict[int, Verdict] = {}
    failed, in_a_row = HeldKeys(), 0
    for index, item in enumerate(items):
        if verdicts and (in_a_row >= REFUSED_IN_A_ROW or failed.holds(changes[index])):
            verdict: Verdict | None = NotNow(BEHIND, is_behind=True)
        else:
            verdict = send(item)
            in_a_row = in_a_row + 1 if isinstance(verdict, Refused) else 0
        if verdict is not None:
            verdicts[index] = verdict
            failed.hold(changes[index])
    return verdicts
