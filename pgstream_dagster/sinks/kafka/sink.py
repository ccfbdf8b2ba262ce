"""
A sink whose target is Kafka.

Delivered means: acknowledged by all in-sync replicas, or, with `exactly_once`, committed in one
transaction with the progress. Records go in order to an idempotent producer, so those of one key
stay in order. After an outage a batch comes again and its records may be there twice, with the same
event ids; with `exactly_once` a consumer that reads what is committed sees none twice.

Only two kinds of record can be refused for what they are: large ones, and those without a key. They
are sent alone, when everything before them is acknowledged, so that a refusal concerns one change
and no later change of its key has overtaken it. A change of which a function of the pipeline file
fails is refused before anything of it is sent. Every other failure concerns all of a batch.

A process that was replaced while it slept hands over no further record, and takes back what its
producer has not sent yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from pgstream_dagster.config.kafka import KafkaConfig, TopicsConfig
from pgstream_dagster.errors import SinkError, SinkRefused, SinkUnreachable
from pgstream_dagster.failpoints import reach
from pgstream_dagster.readers.change import ChangeBatch
from pgstream_dagster.sinks.base import NotNow, Refused, Verdicts, deliver_items
from pgstream_dagster.sinks.kafka import admin, progress
from pgstream_dagster.sinks.kafka.client import connection, producing
from pgstream_dagster.sinks.kafka.failures import (
    NOT_TAKEN,
    OF_ONE_TOPIC,
    TOO_LARGE,
    named,
    remedy_of,
)
from pgstream_dagster.sinks.kafka.hooks import (
    EventPlaces,
    HookFailed,
    Hooks,
    hooks_of,
    hooks_of_events,
)
from pgstream_dagster.sinks.kafka.messages import Record, RecordFields, Records
from pgstream_dagster.sinks.kafka.schemas import SchemaTopic

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.5
"""Between two looks whether a wait is over, so that a signal can interrupt it."""

LOGINS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})

OUTAGES: Final = LOGINS | {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}

NO_RIGHT: Final = "is one that the user may not write to: give it the right with kafka-acls.sh"

WITHOUT_REFUSED: Final = "another change of its transaction was refused"

LEFT_OPEN: Final = (
    "sink %r: the brokers have left a transaction on %s open, though it was ended; its changes, "
    "the batch after position %s, are delivered again and may be there twice"
)


class KafkaSink:
    """
    Delivers changes as records; see the module for what it promises.

    `environment` has the variables that the configuration names; `is_outbox`: its changes are
    events of the outbox, which name their topic themselves or go to the one of the configuration.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        pipeline: str,
        sink: str,
        environment: Mapping[str, str],
        is_outbox: bool = False,
    ) -> None:
        self._config, self._pipeline, self._sink = config, pipeline, sink
        self._is_outbox: Final = is_outbox
        self._refused_topics: dict[str, str] = {}
        self._connection: Final[dict[str, Any]] = {
            **connection(config, environment),
            "error_cb": self._heard,
        }
        self._progress: Final = progress.topic(config.progress_topic, pipeline, sink)
        self._schemas: Final = SchemaTopic.of_sink(config, pipeline)
        self._hooks: Final = self._loaded()
        self._records: Final = Records(config, pipeline, self._hooks)
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._batch_bytes = config.batch_bytes
        self._topics: set[str] = set()
        self._require: Callable[[float], None] = lambda _seconds: None
        self._errors: list[KafkaError] = []
        self._reasons: list[KafkaError] = []

    @property
    def keeps_cursor(self) -> bool:
        """With transactions: they carry the progress."""
        return self._config.exactly_once

    def open(self) -> str | None:
        """
        Connect; with `exactly_once`, end what an earlier process began and read the progress.

        A producer of the same sink that is still alive is fenced by that: what it sends from now on
        is refused.
        """
        self._discard()
        self._reasons.clear()
        try:
            self._admin = AdminClient(self._connection, logger=logger)
            admin.check(self._admin)
            if self._schemas is not None:
                self._make_topic(self._admin, self._schemas.topic)
                self._require_layout(self._schemas)
            if not self._config.exactly_once:
                self._producer = self._new_producer()
                return None
            self._make_topic(self._admin, self._progress)
            self._producer = self._new_producer()
            return self._last_cursor()
        except KafkaException as error:
            raise self._failed(error) from error

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        """Send the records of the changes and wait until the brokers have them."""
        self._require = batch.require
        try:
            self._prepare(batch)
            if self._config.exactly_once:
                return self._commit(batch)
            records = self._records.of_changes(batch.changes)
            verdicts = deliver_items(batch.changes, records, self._send)
            self._settle()
        except KafkaException as error:
            raise self._failed(error) from error
        except SinkError:
            self._discard()
            raise
        return verdicts

    def close(self) -> None:
        """Drop the connections; what is not acknowledged comes again."""
        self._discard()

    # --- one batch ----------------------------------------------------------------------------

    def _send(self, records: Sequence[RecordFields] | HookFailed) -> Refused | None:
        """Hand the records of a change to the producer, or refuse it."""
        if isinstance(records, HookFailed):
            return Refused(str(records))
        produce, report, alone_bytes = self._ready.produce, self._reported, self._batch_bytes // 2
        self._require(0.0)
        for record in records:
            name, key, value, headers = record
            if key is None or (value is not None and len(value) + len(key) > alone_bytes):
                reason = self._send_alone(Record(*record))
                if reason is not None:
                    return Refused(reason)
                continue
            try:
                produce(name, value, key, on_delivery=report, headers=headers)
            except BufferError:
                self._wait_for_room(record)
        return None

    def _send_alone(self, record: Record) -> str | None:
        """Send one record and wait for it; why it is refused, or `None`."""
        self._settle()
        size = record.size_bytes
        if size > self._config.largest_bytes:
            limit = self._config.largest_bytes
            return f"a record of {size:,} bytes is larger than 'largest_bytes' ({limit:,})"
        try:
            self._produce(record)
        except KafkaException as error:
            if error.args[0].code() not in TOO_LARGE:
                raise
            return f"a record of {size:,} bytes: {error.args[0].str()}"
        self._flush()
        if self._errors and self._errors[0].code() in NOT_TAKEN:
            error = self._errors.pop()
            return f"a record of {size:,} bytes for topic {record.topic!r}: {error.str()}"
        self._raise_failure()
        return None

    def _produce(self, record: RecordFields) -> None:
        name, key, value, headers = record
        self._ready.produce(name, value, key, on_delivery=self._reported, headers=headers)

    def _wait_for_room(self, record: RecordFields) -> None:
        """The producer's queue is full: wait until the brokers have taken some of it."""
        while True:
            self._ready.poll(WAIT_SECONDS)
            self._require(0.0)
            self._raise_failure()
            try:
                self._produce(record)
            except BufferError:
                continue
            return

    def _settle(self) -> None:
        """
        Wait until all records are acknowledged.

        Raises:
            SinkUnreachable, SinkRefused, SinkLost: one is not.
        """
        self._flush()
        self._raise_failure()

    def _flush(self) -> None:
        """Wait until each record is acknowledged or given up, which takes `delivery_seconds`."""
        producer = self._ready
        try:
            while len(producer):
                self._require(0.0)
                producer.poll(WAIT_SECONDS)
        except SystemError as error:
            # A fatal error of librdkafka is raised among its callbacks, and those that follow it
            # turn it into this one. The next call has it again.
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from error
            self._abort()
            raise

    def _raise_failure(self) -> None:
        if self._errors:
            raise named(self._sink, self._telling(self._errors[0]))

    # --- transactions -------------------------------------------------------------------------

    def _commit(self, batch: ChangeBatch) -> Verdicts:
        """
        Deliver a batch and its cursor in one transaction.

        With a refused change nothing is committed: the progress must not pass a change before it is
        kept as a dead letter. The others come again without it.
        """
        refused: dict[int, Refused] = {}
        while True:
            self._ready.begin_transaction()
            newly = self._refused(batch, refused)
            if not newly:
                break
            self._abort()
            refused |= newly
        if refused:
            self._abort()
            others = NotNow(WITHOUT_REFUSED, wait_seconds=0, is_behind=True)
            return dict.fromkeys(range(len(batch.changes)), others) | refused
        self._produce(progress.record(self._progress, self._pipeline, self._sink, batch.cursor))
        self._settle()
        reach("kafka.sent")
        self._ready.commit_transaction(self._config.delivery_seconds)
        reach("kafka.committed")
        return {}

    def _refused(self, batch: ChangeBatch, before: Container[int]) -> dict[int, Refused]:
        """
        Hand over the records of a transaction, except those of changes refused `before`.

        It cannot continue after a refusal, so it is left at the first one, which is returned.
        """
        for index, records in enumerate(self._records.of_changes(batch.changes)):
            if index not in before and (refusal := self._send(records)) is not None:
                return {index: refusal}
        return {}

    def _abort(self) -> None:
        self._ready.abort_transaction(self._config.delivery_seconds)
        self._flush()
        self._errors.clear()  # of what was not sent any more

    def _last_cursor(self) -> str | None:
        """
        The progress, read when no transaction of this sink is under way any more.

        Brokers end a transaction without its markers if a partition has no leader while its
        coordinator starts ("likely deleted already and hence can be skipped", Apache Kafka 4.3).
        """
        key = progress.record(self._progress, self._pipeline, self._sink, "").key or b""
        cursor = progress.last_cursor(self._connection, self._progress, key)
        if progress.has_open_transaction(self._connection, self._progress):
            logger.warning(LEFT_OPEN, self._sink, self._progress, cursor)
        return cursor

    # --- connections --------------------------------------------------------------------------

    @property
    def _ready(self) -> Producer:
        if self._producer is None:
            raise SinkUnreachable(self._sink, "not connected")
        return self._producer

    def _new_producer(self) -> Producer:
        settings = producing(
            self._config,
            batch_bytes=self._batch_bytes,
            transactional_id=f"pgstream-{self._pipeline}-{self._sink}",
        )
        producer = Producer(self._connection | settings, logger=logger)
        if self._config.exactly_once:
            producer.init_transactions(self._config.delivery_seconds)
        return producer

    def _discard(self) -> None:
        """Forget the producer with all that it has not delivered."""
        if self._producer is not None:
            self._producer.purge(in_queue=True, in_flight=True)
        self._producer = self._admin = None
        if self._schemas is not None:
            self._schemas.forget()
        self._errors.clear()
        self._topics.clear()
        self._refused_topics.clear()

    @property
    def _default_topic(self) -> str | None:
        """Of events: the topic that the file names, if it does."""
        return self._config.topic if "topic" in self._config.model_fields_set else None

    def _loaded(self) -> Hooks:
        if self._is_outbox:
            setting = f"sinks.{self._sink}.kafka.topic"
            own = {self._progress, *([] if self._schemas is None else [self._schemas.topic])}
            return hooks_of_events(
                EventPlaces(self._default_topic, setting, self._refused_topics, own)
            )
        try:
            return hooks_of(self._config, self._pipeline)
        except ValueError as error:
            remedy = f"correct sinks.{self._sink}.kafka, or install the function's package"
            raise SinkRefused(self._sink, f"the function {error}", remedy) from error

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)

    def _heard(self, error: KafkaError) -> None:
        """What librdkafka says beside the answers to requests: why it has no connection."""
        self._reasons.append(error)
        del self._reasons[:-10]

    def _failed(self, raised: KafkaException) -> SinkError:
        error = self._telling(raised.args[0])
        self._discard()
        return named(self._sink, error)

    def _telling(self, error: KafkaError) -> KafkaError:
        """What is behind a time-out: a failed login or certificate, or which broker and why."""
        if error.code() not in OUTAGES:
            return error
        for client in (self._producer, self._admin):
            if client is not None:
                client.poll(0)  # serves the callbacks
        logins = (reason for reason in self._reasons if reason.code() in LOGINS)
        if (login := next(logins, None)) is not None:
            return login
        heard = (reason for reason in reversed(self._reasons) if reason.code() in OUTAGES)
        return next((r for r in heard if r.code() != KafkaError._ALL_BROKERS_DOWN), error)

    # --- topics -------------------------------------------------------------------------------

    def _prepare(self, batch: ChangeBatch) -> None:
        """Make and look at the topics that the batch is the first one to need."""
        smallest = self._batch_bytes
        self._refused_topics.clear()  # a person may have made them since
        for name in self._hooks.topics(batch.changes) - self._topics:
            limit = self._prepare_topic(name)
            smallest = min(smallest, limit or smallest)
            if name not in self._refused_topics:
                self._topics.add(name)
        if smallest < self._batch_bytes:
            self._batch_bytes = smallest
            self._producer = self._new_producer()
        if self._schemas is not None:
            self._schemas.publish(batch.changes, self._connection)

    def _prepare_topic(self, name: str) -> int | None:
        """Make a topic if it is missing, unless only an event names it; its limit of a batch."""
        client = self._admin
        if client is None:
            raise SinkUnreachable(self._sink, "not connected")
        is_only_of_events = self._is_outbox and name != self._default_topic
        try:
            if is_only_of_events:
                if (reason := self._refusal(client, name)) is not None:
                    self._refused_topics[name] = reason
                    return None
            elif not self._is_there(client, name):
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
            return admin.limit_bytes(client, name)
        except KafkaException as error:
            raise named(self._sink, self._telling(error.args[0]), f"topic {name!r}") from error

    def _refusal(self, client: AdminClient, name: str) -> str | None:
        """
        Why events cannot go to a topic that only they name, made if it is to be; `None`: they can.

        Raises:
            KafkaException: the brokers cannot be asked.
        """
        try:
            if not self._is_there(client, name):
                return "does not exist: make it, or set 'create'"
            return None if admin.may_write(client, name) else NO_RIGHT
        except KafkaException as error:
            remedy = remedy_of(error.args[0], f"sinks.{self._sink}.kafka")
            if error.args[0].code() not in OF_ONE_TOPIC or remedy is None:
                raise
            return f"cannot be written: {error.args[0].str()}; {remedy}"

    def _is_there(self, client: AdminClient, name: str) -> bool:
        """Whether a topic exists, which is made if the file says so."""
        if admin.exists(client, name):
            return True
        if self._config.create is not None:
            admin.create(client, name, self._config.create)
        return self._config.create is not None

    def _require_layout(self, schemas: SchemaTopic) -> None:
        """A pipeline that reads the topics relies on where the changes of a row go."""
        recorded = schemas.recorded_layout(self._connection)
        if recorded != schemas.layout:
            raise SinkRefused(
                self._sink,
                f"topic {schemas.topic!r} says that changes go to topics {recorded.topic!r} with"
                f" 'key: {recorded.key}', and the file has {schemas.layout.topic!r} with"
                f" 'key: {schemas.layout.key}': changes of a row in two places have no order",
                "set 'topic' and 'key' back, or give the sink a new 'topic' and 'schemas_topic',"
                f" run 'pgstream sink reset {self._sink}', and read them into a new lake",
            )

    def _make_topic(self, client: AdminClient, name: str) -> None:
        """Make a compacted topic for what the sink itself keeps, if it is missing."""
        if admin.exists(client, name):
            return
        replication = self._config.create.replication if self._config.create else None
        settings = TopicsConfig(
            replication=replication, cleanup_policy="compact", settings=dict(progress.SETTINGS)
        )
        admin.create(client, name, settings)
