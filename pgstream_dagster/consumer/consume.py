"""
The stream of a pipeline whose source is Kafka: records of topics into its log.

Whatever ends a process, and however the group moves partitions: each record is in the log once,
those of a partition in their order. Offsets are committed to Kafka after the records are durable.
Everything that delivers reads the log, as it does of a pipeline on Postgres.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaException, Message

from pgstream_dagster import state_folder
from pgstream_dagster.backoff import waits
from pgstream_dagster.changelog.consumed import EPOCH, ConsumedLog, Partition, PartitionTaken, Span
from pgstream_dagster.changelog.land import Landed, Report
from pgstream_dagster.changelog.ledger import CopyRecord
from pgstream_dagster.consumer import records
from pgstream_dagster.consumer.batch import Arrived, Places, new_changes, rows
from pgstream_dagster.consumer.group import Member, failed
from pgstream_dagster.consumer.origin import require_kafka
from pgstream_dagster.consumer.records import Unfit
from pgstream_dagster.consumer.versions import Version, Versions
from pgstream_dagster.delta import faults
from pgstream_dagster.errors import InvalidRecord, JvmEnded, PgstreamError, Retry
from pgstream_dagster.failpoints import reach
from pgstream_dagster.heartbeat import HeartbeatWriter
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.named import named
from pgstream_dagster.pipeline import OpenPipeline, Pipeline
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import TableSchema
from pgstream_dagster.schema.versions import Versions as CatalogVersions
from pgstream_dagster.sinks.kafka.client import connection

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""How late a stop is noticed while nothing arrives."""

GATHER_SECONDS: Final = 0.05
"""The same while records wait for a commit."""

FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 30.0

ORIGIN: Final = "kafka_origin"
"""Kind of the ledger's fact which pipeline, and which source of it, the records are of."""

REFUSED: Final = "refused_records"
"""Kind of the ledger's fact that records were passed over."""

SCHEMAS: Final = (
    "set 'schemas_topic' of the sink that writes the topic, then 'pgstream sink replay' it"
)


@named
def consume(
    pipeline: Pipeline,
    *,
    stop: threading.Event,
    is_drain: bool = False,
    report: Report = lambda landed: None,
    environment: Mapping[str, str] | None = None,
) -> Landed:
    """
    Land records until `stop` is set; or, with `is_drain`, all that are there now.

    Any number of processes may run it at once: they share the partitions. Waits while brokers or
    lake are away.

    Raises:
        NotSetUp: `setup` was never run.
        InvalidRecord: a record cannot be landed, and the pipeline file says to stop at it.
        RecordsGone: the topic has removed records before they were landed.
        TopicCompacted: the topic may remove records before they are landed.
        TopicChanged: the topic has more partitions than before, or was made again.
        BrokerRefused: a login, a right, a certificate or a topic is missing.
    """
    state_folder.claim(pipeline)
    variables = pipeline.environment if environment is None else environment
    landed, pauses = Landed(Lsn(0)), waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
    heartbeat = _Heartbeat(pipeline, report)
    while True:
        commits = landed.commits
        try:
            with pipeline.open() as opened, faults.named(pipeline.lake.change_log):
                require_kafka(opened.identity)
                with closing(_Consuming(opened, landed, heartbeat, variables)) as consuming:
                    consuming.run(stop, is_drain=is_drain)
                    return landed
        except KafkaException as error:
            problem: PgstreamError = failed(error.args[0])
        except PgstreamError as error:
            problem = error
        if problem.retry is not Retry.LATER or isinstance(problem, JvmEnded):
            raise problem
        if landed.commits > commits:
            pauses = waits(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        seconds = next(pauses)
        logger.warning("%s; trying again in %.1f s", problem, seconds)
        heartbeat.write("reconnecting", landed, str(problem))
        if stop.wait(seconds):
            return landed


class _Heartbeat:
    """Reports progress, and that the process is alive."""

    def __init__(self, pipeline: Pipeline, report: Report) -> None:
        self._heartbeat, self._report = HeartbeatWriter(pipeline.heartbeat_file), report

    def landed(self, landed: Landed) -> None:
        """Pass progress on, and write the file about once a second."""
        self._report(landed)
        if self._heartbeat.is_due:
            self.write("streaming", landed)

    def write(self, state: str, landed: Landed, reason: str | None = None) -> None:
        """Write the file now."""
        facts = {"rows": landed.rows, "commits": landed.commits}
        self._heartbeat.say(state, reason, watermark=str(landed.watermark), **facts)


@dataclass(slots=True)
class _Gathered:
    """Records that wait for a commit; `ends` has the offset after the last one of a partition."""

    messages: list[Message] = field(default_factory=list[Message])
    bytes: int = 0
    ends: dict[Partition, int] = field(default_factory=dict[Partition, int])
    began_at: float = 0.0

    def add(self, message: Message) -> None:
        """Take a record, or the end of a partition."""
        self.ends[partition_of(message)] = offset_of(message) + (message.error() is None)
        if message.error() is None:
            self.began_at = self.began_at or time.monotonic()
            self.messages.append(message)
            self.bytes += len(message.value() or b"")


class _Consuming:
    """One connection to the brokers and one open log."""

    def __init__(
        self,
        opened: OpenPipeline,
        landed: Landed,
        heartbeat: _Heartbeat,
        environment: Mapping[str, str],
    ) -> None:
        config = opened.pipeline.config.source.kafka
        assert config is not None
        self._opened, self._config = opened, config
        self._landed, self._heartbeat = landed, heartbeat
        pipeline, settings = opened.pipeline, connection(config, environment)
        self._log = ConsumedLog(pipeline.lake, pipeline.name, opened.gateway)
        landed.watermark = self._log.watermark
        self._versions = Versions(settings, config.schemas_topic)
        self._places, self._gathered = Places(self._log), _Gathered()
        # of each relation, the versions in its last commit
        self._newest: dict[int, set[tuple[int, str, str]]] = {}
        self._copied: set[int] = set()
        self._origin = self._recorded_origin()
        group = config.group_of(pipeline.name)
        self._member = Member(config, settings, group, self._log, self._forget)

    def close(self) -> None:
        """Leave the group, then the log."""
        self._member.close()
        self._log.close()

    def run(self, stop: threading.Event, *, is_drain: bool) -> None:
        """Land until `stop`, or until everything that is there now is landed by any process."""
        ends = self._member.ends() if is_drain else {}
        while not stop.is_set():
            seconds = GATHER_SECONDS if self._gathered.messages else POLL_SECONDS
            limit = self._opened.pipeline.config.capture.flush_rows
            for message in self._member.records(seconds, limit):
                self._gathered.add(message)
            self._heartbeat.landed(self._landed)
            if self._is_due():
                self._flush()
            if is_drain and not self._gathered.messages and self._has(ends):
                return
        self._flush()

    def _is_due(self) -> bool:
        gathered, capture = self._gathered, self._opened.pipeline.config.capture
        return bool(gathered.messages) and (
            len(gathered.messages) >= capture.flush_rows
            or gathered.bytes >= capture.flush_bytes
            or time.monotonic() - gathered.began_at >= capture.flush_seconds
        )

    def _has(self, ends: Mapping[Partition, int]) -> bool:
        """Whether all records before these ends are in the log; ends of ours need no record."""
        self._log.refresh()
        own = self._gathered.ends
        return all(
            max(self._log.offset(p) or 0, own.get(p, 0)) >= end or end == 0
            for p, end in ends.items()
        )

    def _forget(self) -> None:
        """The partitions are given out again: their next owner reads from the log's offset."""
        self._gathered = _Gathered()
        self._places.forget()

    # --- one commit -----------------------------------------------------------------------------

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, _Gathered()
        if not gathered.messages:
            return
        refused: list[InvalidRecord] = []
        arrived = self._arrived(gathered.messages, refused)

        def refuse(arrival: Arrived, unfit: Unfit) -> None:
            refused.append(_invalid(arrival.partition, arrival.offset, unfit))

        self._member.require_unchanged()
        fresh = new_changes(arrived, self._places, self._log, refuse)
        self._settle(refused)
        self._prepare(fresh)
        begins = self._member.begins
        ends = {p: end for p, end in gathered.ends.items() if end != begins[p]}
        span = Span({p: begins[p] for p in ends}, ends, self._places.highest(arrived))
        try:
            self._commit(fresh, span)
        except PartitionTaken:
            logger.info("another process has landed records of our partitions; reading on after it")
            self._member.seek_to_log()

    def _commit(self, fresh: Sequence[Arrived], span: Span) -> None:
        done = self._log.append(rows(fresh), span)
        self._member.commit(span.ends)
        reach("confirm.sent")
        landed = self._landed
        landed.watermark, landed.version = done.end_lsn, done.version
        landed.rows += done.rows
        landed.commits += 1
        newest = max((c.committed_at for _, _, c in fresh if c.committed_at), default=None)
        if newest is not None:
            landed.lag_seconds = max(0.0, time.time() - newest.timestamp())
        self._heartbeat.landed(landed)

    def _settle(self, refused: Sequence[InvalidRecord]) -> None:
        """Keep what cannot be landed, or stop at the first of it."""
        if not refused:
            return
        if self._config.on_invalid == "stop":
            raise refused[0]
        facts = [{k: v for k, v in error.facts.items() if k != "remedy"} for error in refused]
        self._opened.ledger.record(REFUSED, EPOCH, {"records": facts})
        logger.warning("%d records cannot be landed and are passed over", len(refused))

    # --- records to changes ---------------------------------------------------------------------

    def _arrived(self, messages: Sequence[Message], refused: list[InvalidRecord]) -> list[Arrived]:
        arrived: list[Arrived] = []
        for message in messages:
            value = message.value()
            if value is None:
                continue  # a tombstone repeats what a delete says
            partition, offset = partition_of(message), offset_of(message)
            try:
                change = self._change(value, partition)
            except Unfit as unfit:
                refused.append(_invalid(partition, offset, unfit))
            else:
                if change is not None:
                    arrived.append(Arrived(partition, offset, change))
        return arrived

    def _change(self, value: bytes, partition: Partition) -> records.Read | None:
        """The change in a message; `None` for DDL: the versions come by their own topic."""
        decoded = records.message(value)
        self._require_origin(decoded)
        if decoded.op == Op.DDL:
            return None
        version = self._version(decoded)
        return records.change(decoded, version, partitions=self._member.count(partition.topic))

    def _version(self, decoded: records.Message) -> Version:
        if decoded.schema_id is None:
            raise Unfit(f"a {decoded.op!r} is not landed")
        name = (decoded.schema_id, decoded.namespace, decoded.relation)
        version = self._versions.find(name)
        if version is None:
            topic = self._config.schemas_topic
            raise Unfit(f"topic {topic!r} does not have its schema {decoded.schema_id}", SCHEMAS)
        return version

    def _require_origin(self, decoded: records.Message) -> None:
        """One source: another one would have other tables with the same ids and names."""
        origin = (decoded.pipeline, decoded.epoch)
        if self._origin is None:
            facts = {"pipeline": decoded.pipeline, "epoch": decoded.epoch}
            self._opened.ledger.record(ORIGIN, EPOCH, facts)
            self._origin = self._recorded_origin()
        if origin != self._origin:
            assert self._origin is not None
            form = "pipeline {!r}, epoch {}"
            ours, theirs = form.format(*self._origin), form.format(*origin)
            raise Unfit(
                f"it is of {theirs}, and this log is of {ours}",
                "read it with a pipeline and a lake of its own",
            )

    def _recorded_origin(self) -> tuple[str, int] | None:
        """The first that was recorded, by whichever process."""
        recorded = self._opened.ledger.facts(ORIGIN)
        return (recorded[0][1]["pipeline"], recorded[0][1]["epoch"]) if recorded else None

    # --- tables ---------------------------------------------------------------------------------

    def _prepare(self, fresh: Sequence[Arrived]) -> None:
        """Versions and empty copies are durable before the first row that needs them."""
        current: dict[int, dict[tuple[int, str, str], TableSchema]] = {}
        for _, _, change in fresh:
            schema = change.version.schema
            current.setdefault(schema.relation_id, {})[schema.version] = schema
        for relation_id, versions in current.items():
            if not versions.keys() <= self._newest.get(relation_id, set()):
                self._versions.read_on()  # a table may have gone back to an earlier version
                self._opened.schema_log.append(self._versions.of_relation(relation_id))
                reach("land.schema")
            self._newest[relation_id] = set(versions)
            if relation_id not in self._copied:
                self._start_relation(next(iter(versions.values())))

    def _start_relation(self, schema: TableSchema) -> None:
        ledger = self._opened.ledger
        point = self._log.start_relation(schema)
        reach("copy.committed")
        if schema.relation_id not in ledger.copies(EPOCH):
            attnums = tuple(schema.attnums.values())
            record = CopyRecord(
                point, {}, attnums, max(attnums), None, schema.full_name, CatalogVersions()
            )
            ledger.record_copy(EPOCH, schema.relation_id, record)
        self._copied.add(schema.relation_id)


def _invalid(partition: Partition, offset: int, unfit: Unfit) -> InvalidRecord:
    return InvalidRecord(*partition, offset, unfit.reason, unfit.remedy)


def partition_of(message: Message) -> Partition:
    """The partition that a record was read from."""
    place: Any = (message.topic(), message.partition())
    return Partition(*place)


def offset_of(message: Message) -> int:
    """The offset of a record, or of the end of its partition."""
    offset = message.offset()
    assert offset is not None
    return offset
