"""
Where subscriptions are: the pipeline file, or the table `pgstream.webhook_subscriptions`.

The table is in the source's database and has pgstream's columns, so the rows of a pgstream that ran
there are taken as they are. It is read through a cache, and contains no secret.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pgstream_dagster.config.webhook import SubscriptionConfig
from pgstream_dagster.errors import AccessRefused, SourceError
from pgstream_dagster.sinks.webhook.subscription import Subscription, row_name
from pgstream_dagster.source.connect import Session, connect, named_errors
from pgstream_dagster.source.query import query
from pgstream_dagster.sql import statement

logger = logging.getLogger(__name__)

APPLICATION: Final = "pgstream webhooks"

RIGHTS: Final = (
    "the table pgstream.webhook_subscriptions could not be created: run 'grant create on database"
    " <database> to <role>', or create it yourself as in docs/guides/webhooks.md"
)


def of_file(subscriptions: Mapping[str, SubscriptionConfig]) -> list[Subscription]:
    """The subscriptions of a pipeline file."""
    return [
        Subscription(
            config.url, config.namespace or "", config.table or "", config.event_types, name
        )
        for name, config in subscriptions.items()
    ]


class SubscriptionTable:
    """
    The table on the source; each method has a connection and transaction of its own.

    Each creates the table, or what it lacks, where that is missing.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def create(self) -> None:
        """
        Create the table, or what it lacks; without any lock if nothing is missing.

        Raises:
            SourceError
        """
        with self._session():
            pass

    def subscribe(self, subscription: Subscription) -> bool:
        """
        Add it, or give an existing one its event types, enabled; whether it is new.

        Raises:
            SourceError
        """
        types = list(subscription.event_types) or None
        with self._session() as session:
            rows = query(session, "webhook/subscribe", **_row_of(subscription), event_types=types)
        return bool(rows[0][0])

    def unsubscribe(self, subscription: Subscription) -> bool:
        """
        Remove it; whether it was there.

        Raises:
            SourceError
        """
        with self._session() as session:
            return bool(query(session, "webhook/unsubscribe", **_row_of(subscription)))

    def disable(self, subscription: Subscription, reason: str) -> None:
        """
        Note that it is disabled, unless it is.

        Raises:
            SourceError
        """
        with self._session() as session:
            query(session, "webhook/disable", **_row_of(subscription), reason=reason)

    def subscriptions(self) -> list[Subscription]:
        """
        All of them, disabled ones too.

        Raises:
            SourceError
        """
        with self._session() as session:
            return [_subscription(*row) for row in query(session, "webhook/subscriptions")]

    @contextmanager
    def _session(self) -> Generator[Session]:
        with closing(connect(self._dsn, application_name=APPLICATION)) as session:
            _ensure_table(session)
            yield session


def _ensure_table(session: Session) -> None:
    [(is_ready,)] = query(session, "webhook/table_state")
    if is_ready:
        return
    try:
        with named_errors(session):
            session.execute(statement("webhook/create"))
    except AccessRefused as error:
        raise AccessRefused(error.server, error.reason, RIGHTS) from error


def _row_of(subscription: Subscription) -> dict[str, str]:
    """What identifies a row of the table."""
    return {
        "url": subscription.url,
        "namespace": subscription.namespace,
        "table": subscription.table,
    }


def _subscription(
    url: str,
    namespace: str,
    table: str,
    event_types: Sequence[str] | None,
    disabled_at: datetime | None,
    disabled_reason: str | None,
) -> Subscription:
    name = row_name(url, namespace, table)
    types = tuple(event_types or ())
    return Subscription(url, namespace, table, types, name, disabled_at, disabled_reason)


@dataclass(frozen=True, slots=True)
class _Cached:
    read_at: float
    subscriptions: Sequence[Subscription]


class CachedSubscriptions:
    """
    The table's subscriptions, at most `refresh_seconds` old while the source answers.

    While it does not, they are those of the last read: a source that is down stops no delivery.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[Subscription]],
        refresh_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: _Cached | None = None

    def all(self) -> Sequence[Subscription]:
        """
        Every subscription.

        Raises:
            SourceError: the source does not answer and never did.
        """
        with self._lock:
            cached, now = self._cached, self._clock()
            if cached is not None and now - cached.read_at < self._refresh_seconds:
                return cached.subscriptions
            self._cached = _Cached(now, self._fresh(cached))
            return self._cached.subscriptions

    def active(self) -> Sequence[Subscription]:
        """Those that are not disabled."""
        return [entry for entry in self.all() if entry.disabled_at is None]

    def forget(self) -> None:
        """Read the table at the next use: it has changed."""
        with self._lock:
            self._cached = None

    def _fresh(self, cached: _Cached | None) -> Sequence[Subscription]:
        try:
            return self._read()
        except SourceError as error:
            if cached is None:
                raise
            logger.warning("webhook subscriptions could not be read again: %s", error)
            return cached.subscriptions
