"""
Marks: transactions by which the history of a server is recognised.

A server that is put back to an earlier state keeps its identifier, its timeline and its positions
in the WAL. A mark distinguishes such a server from the one it was: some transactions that change
nothing, half of them, at random, rolled back. Postgres knows how each of its transactions ended and
tells every role, and standbys know it, too. A server that was put back to before the mark has other
transactions under these ids, which end in another pattern, or none.

Source:
    https://www.postgresql.org/docs/current/functions-info.html (pg_xact_status)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from psycopg import sql

from pgstream_dagster.errors import ReadOnlyServer
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import Session, named_errors
from pgstream_dagster.source.query import current_lsn, query
from pgstream_dagster.sql import statement

TRANSACTIONS: Final = 32
"""Per mark. Half of them can be chosen in 6e8 ways, should two marks ever meet."""

ENDINGS: Final = {"committed": sql.SQL("commit"), "aborted": sql.SQL("rollback")}
"""By what `pg_xact_status` reports."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Full transaction ids and how they ended; all of it is in the WAL before `lsn`."""

    lsn: Lsn
    outcomes: Mapping[int, str]

    @property
    def facts(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"lsn": str(self.lsn), "outcomes": dict(self.outcomes)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """The mark with these facts."""
        outcomes = {int(xid): outcome for xid, outcome in facts["outcomes"].items()}
        return cls(Lsn.parse(facts["lsn"]), outcomes)


def make(connection: Session) -> Mark | None:
    """A new mark, durable when this returns; `None` on a standby, which cannot write."""
    outcomes = [*ENDINGS] * (TRANSACTIONS // 2)
    random.shuffle(outcomes)
    transaction = sql.SQL(f"begin; {statement('source/xact_id')}; {{}}")
    transactions = sql.SQL("; ").join(transaction.format(ENDINGS[outcome]) for outcome in outcomes)
    try:
        with named_errors(connection), connection.cursor() as cursor:
            cursor.execute(transactions)  # in one round trip
            xids = [xid for result in cursor.results() if result.description for (xid,) in result]
        query(connection, "source/pass_position")  # it writes, so all of it is flushed
        lsn = current_lsn(connection)
    except ReadOnlyServer:
        return None
    return Mark(lsn, dict(zip(xids, outcomes, strict=True)))


def difference(connection: Session, mark: Mark) -> tuple[int, str] | None:
    """
    A transaction of the mark and how it ended here, if the server's history has no such mark.

    What the server has forgotten, after millions of transactions, is no difference.
    """
    for xid, outcome in _outcomes(connection, mark).items():
        if outcome not in (None, mark.outcomes[xid]):
            return xid, outcome
    return None


def has(connection: Session, mark: Mark) -> bool:
    """Whether the server's history has the mark, as far back as it knows."""
    return _outcomes(connection, mark) == mark.outcomes


def _outcomes(connection: Session, mark: Mark) -> dict[int, str | None]:
    return dict(query(connection, "source/xact_outcomes", xids=list(mark.outcomes)))
