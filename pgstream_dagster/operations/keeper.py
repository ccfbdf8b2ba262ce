"""
The keeper: copies tables that need it, beside the stream and without holding it up.

A table needs a copy when it has none (it joined the publication), when the decoder asked for one
(a key or a type changed), or when its data changed without rows: a rewrite, an attached or
detached partition. The last is found by comparing what the ledger recorded at the copy with the
catalog, at every connect and once a minute. (VACUUM FULL, CLUSTER and TRUNCATE look like a rewrite
and cost a copy that was not needed.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from pgstream_dagster.changelog import jvm
from pgstream_dagster.changelog.ledger import CopyRecord, Ledger
from pgstream_dagster.errors import PgstreamError
from pgstream_dagster.operations.pipeline import Pipeline
from pgstream_dagster.operations.snapshot import copy_relations
from pgstream_dagster.source.connect import connect
from pgstream_dagster.source.decoding import FIRST_SEEN
from pgstream_dagster.source.publication import PublishedTable, published

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""After a copy failed: the reason (a lock, a full disk) seldom goes away at once."""


class Keeper:
    """A thread with its own connections; use as a context manager around the stream."""

    def __init__(self, pipeline: Pipeline, epoch: int) -> None:
        self._pipeline, self._epoch = pipeline, epoch
        self._wanted: dict[int, str] = {}  # relation -> why
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgstream-keeper", daemon=True)
        self.failure: str | None = None
        """Why the newest attempt failed; `None` after one that did not."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A copy under way is waited for: its tasks would outlive the session that pins them."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def want(self, relation_id: int, reason: str) -> None:
        """Ask for a copy of a relation; called from the decoder's thread."""
        with self._lock:
            self._wanted[relation_id] = reason
        self._wake.set()

    def look(self) -> None:
        """Compare the catalog with the ledger now, not at the next minute."""
        self._wake.set()

    def _run(self) -> None:
        patience = 0.0
        while not self._wake.wait(patience) or not self._closing.is_set():
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self._round()
            except PgstreamError as error:
                self.failure = str(error)
                logger.warning("a copy is due and failed: %s", error)
                patience = AGAIN_SECONDS
            else:
                self.failure = None
                patience = self._pipeline.config.capture.catalog_check_seconds

    def _round(self) -> None:
        """Copy what needs it, all from one snapshot."""
        pipeline = self._pipeline
        ledger = Ledger(pipeline.lake, jvm.gateway(pipeline.jvm))
        known = ledger.identity()
        assert known is not None, "the stream does not start without"
        with connect(pipeline.dsn) as connection:
            tables = published(connection, known.publication)
        with self._lock:
            asked, self._wanted = self._wanted, {}
        due = due_copies(tables, ledger.copies(), asked)
        if not due:
            return
        names = {table.relation_id: f"{table.namespace}.{table.name}" for table in tables}
        for oid, reason in due.items():
            logger.info("copying %s: %s", names[oid], reason)
        try:
            copy_relations(pipeline, list(due))
        except BaseException:
            with self._lock:
                self._wanted = {**asked, **self._wanted}
            raise


def due_copies(
    tables: list[PublishedTable], copies: Mapping[int, CopyRecord], asked: Mapping[int, str]
) -> dict[int, str]:
    """Which published relations need a copy, and why."""
    due: dict[int, str] = {}
    for table in tables:
        copy = copies.get(table.relation_id)
        if copy is None:
            due[table.relation_id] = "it has none"
        elif asked.get(table.relation_id, FIRST_SEEN) != FIRST_SEEN:
            due[table.relation_id] = asked[table.relation_id]
        elif copy.members != table.members:
            due[table.relation_id] = "its storage was rewritten, or its partitions changed"
        elif copy.columns != table.columns or copy.row_filter != table.row_filter:
            due[table.relation_id] = "the publication shows other columns or rows of it"
    return due
