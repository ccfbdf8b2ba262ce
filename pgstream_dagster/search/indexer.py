"""
The writer of one generation: batches of the log in, documents and progress out.

However it ends, the next one begins at the stored progress and writes the same documents again,
with the same versions. A partial row is completed before it is written: from the index, if the
stored document was written before this batch, else from the fold of the log. So no row is completed
from a document that a crash, a refusal or another writer left in another state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa

from pgstream_dagster.changelog.dead_letters import DeadLetters, DeadLetterState
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.errors import IndexRefuses, UnknownSchema
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.modifiers.rules import Rules
from pgstream_dagster.readers.log_reader import LogReader
from pgstream_dagster.schema.table import TableSchema, missing_values
from pgstream_dagster.search import batch, generations, render
from pgstream_dagster.search.batch import Batch, Deleted, FullRow, Image, Outcome, PartialRow
from pgstream_dagster.search.bulk import Refusal, Write, send
from pgstream_dagster.search.cluster import Cluster, Stored
from pgstream_dagster.search.control import GenerationLease
from pgstream_dagster.search.fields import RESCUED
from pgstream_dagster.search.follow import follow
from pgstream_dagster.search.ids import Key, document_id
from pgstream_dagster.search.modified import ModifiedLog
from pgstream_dagster.values.raw_json import members

logger = logging.getLogger(__name__)

REFUSED_IN_A_ROW: Final = 50
"""If so many documents are refused and none is taken, the index is at fault, not they."""

SAVE_SECONDS: Final = 1.0
"""Between records of progress while the generation's table does not change."""

OTHER_RULES: Final = "its modifiers changed"
OTHER_LOG: Final = "it is of another change log"

KeyRows: TypeAlias = Callable[[Sequence[Key], Lsn], Mapping[str, Image]]
"""The rows of a few keys as of a watermark, from the fold, by document id."""


class Indexer:
    """
    Applies batches to the generation that `lease` holds; one thread uses it.

    `reader` is its own, from its stored progress on; batches may come from another one.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is one thing that it reads or writes
        self,
        cluster: Cluster,
        lease: GenerationLease,
        config: IndexConfig,
        schema_log: SchemaLog,
        rules: Rules,
        letters: DeadLetters,
        reader: LogReader,
        key_rows: KeyRows,
    ) -> None:
        self.lease, self.reader, self.delivered = lease, reader, lease.generation.delivered
        self._cluster, self._config, self._key_rows = cluster, config, key_rows
        self._schema_log, self._rules, self._letters = schema_log, rules, letters
        self._fits = rules.fingerprint == lease.generation.modified
        self._open = letters.open(lease.generation.index)
        self._modified = ModifiedLog(rules, [])
        self._landed: set[int] = set()
        self._schemas: dict[int, TableSchema] = {}
        self._missing: dict[int, str | None] = {}
        self._schema_id: int | None = None
        self._refused_in_a_row, self._saved = 0, time.monotonic()
        self._read_schemas()

    def apply(self, changes: pa.Table, watermark: Lsn) -> int:
        """
        Write the documents of the changes, then record that all up to `watermark` is delivered.

        Shape:
            changes: all landed changes of the generation's relation after what is delivered, up to
                the watermark, in order.

        Raises:
            SearchUnreachable: nothing is lost; repeat the call.
            LeaseLost: another writer has taken over.
            IndexRefuses, IndexGone, SearchRefused, SearchFailed
        """
        generation = self.lease.generation
        if changes.num_rows == 0 or generation.is_closed:
            self._pass(watermark)
            return 0
        if not self._fits:  # its keys and values are of other rules
            self.lease.save(outdated=OTHER_RULES, is_closed=True)
            self._pass(watermark)
            return 0
        self._require_schemas(set(changes.column("schema_id").to_pylist()) - {None})
        modified = self._modified.changes(changes)
        folded = batch.fold(modified, self._schemas, generation.id_columns)
        for schema_id in folded.schema_ids:
            self._follow(self._schemas[schema_id])
        self.lease.require()
        if folded.emptied_at is not None:
            self._empty(folded.emptied_at)
        writes = list(self._writes(folded, watermark))
        reach("index.completed")
        self._send(writes, folded)
        reach("index.sent")
        if folded.gap_at is not None:
            reason = f"changes are missing from {folded.gap_at} on"
            self.lease.save(outdated=reason, is_closed=True)
        self.delivered = watermark
        self.save()
        reach("index.delivered")
        return len(writes)

    def rewrite(self, keys: Sequence[Key]) -> int:
        """Write these keys' rows as of the delivered position; how many are refused again."""
        if not self._fits:
            return len(keys)
        rows = self._key_rows(keys, self.delivered)
        folded = Batch()
        for key in keys:
            document = document_id(key)
            state = _state(rows.get(document))
            folded.outcomes[document] = Outcome(state, Lsn(self.delivered - 1), 0, key)
        self.lease.require()
        return self._send([self._write(*item) for item in folded.outcomes.items()], folded)

    def save(self) -> None:
        """Record the progress, if there was any."""
        if self.delivered > self.lease.generation.delivered:
            self.lease.save(delivered=self.delivered, refused=len(self._open))
            self._saved = time.monotonic()

    def close(self) -> None:
        """End the sessions with servers that transformers ask."""
        self._modified.close()

    def _pass(self, watermark: Lsn) -> None:
        """Pass over a batch without changes for this generation; recorded from time to time."""
        self.delivered = max(watermark, self.delivered)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()
        self.lease.keep()

    def _require_schemas(self, schema_ids: set[int]) -> None:
        if not schema_ids <= self._landed:
            self._read_schemas()
        for unknown in schema_ids - self._landed:
            raise UnknownSchema(unknown, self._config.table)

    def _read_schemas(self) -> None:
        generation = self.lease.generation
        versions = self._schema_log.named_versions((generation.epoch, generation.relation_id))
        self._modified.close()
        self._modified = ModifiedLog(self._rules, versions)
        self._landed = {version.schema_id for version in versions}
        self._schemas = {schema.schema_id: schema for schema in self._modified.schemas}
        self._missing = missing_values(self._modified.schemas)

    def _follow(self, schema: TableSchema) -> None:
        """Give the index the schema's fields, before the first document that needs them."""
        if schema.schema_id == self._schema_id:
            return
        generation = self.lease.generation
        followed = follow(generation.fields, schema, self._config)
        if followed.fields != generation.fields or followed.outdated:
            generations.add_fields(self._cluster, generation, followed.added, followed.renamed)
            outdated = followed.outdated or generation.outdated
            self.lease.save(fields=followed.fields, outdated=outdated)
            logger.info("%s follows %s: %s", generation.index, schema.full_name, outdated or "all")
        self._schema_id = schema.schema_id

    def _writes(self, folded: Batch, watermark: Lsn) -> Iterator[Write]:
        """The write of every outcome, partial rows completed."""
        stored = self._stored(folded)
        lacking = [
            outcome.key
            for outcome in folded.outcomes.values()
            if isinstance(outcome.state, PartialRow) and outcome.state.origin not in stored
        ]
        rows = self._key_rows(lacking, watermark) if lacking else {}
        for document, outcome in folded.outcomes.items():
            state = outcome.state
            if isinstance(state, PartialRow) and state.origin in stored:
                yield self._merged(document, outcome, state, stored[state.origin])
            elif isinstance(state, PartialRow):
                yield self._write(document, outcome._replace(state=_state(rows.get(document))))
            else:
                yield self._write(document, outcome)

    def _stored(self, folded: Batch) -> dict[str, Stored]:
        """The documents to complete from: those that this batch has not written yet."""
        origins = [origin for origin in batch.origins(folded) if origin not in self._open]
        stored = self._cluster.sources(self.lease.generation.index, origins) if origins else {}
        return {
            id_: document for id_, document in stored.items() if document.version < self.delivered
        }

    def _write(self, document: str, outcome: Outcome) -> Write:
        if not isinstance(outcome.state, FullRow):
            return Write(document, outcome.commit_lsn, None)
        image, fields = outcome.state.image, self.lease.generation.fields
        row = {f.column: image.get(f.attnum, self._missing.get(f.attnum)) for f in fields}
        return Write(document, outcome.commit_lsn, render.document(fields, row))

    def _merged(self, document: str, outcome: Outcome, row: PartialRow, stored: Stored) -> Write:
        """Columns younger than the stored document get the value that Postgres shows for them."""
        fields, had = self.lease.generation.fields, members(stored.source)
        names = {*had, *members(had.get(RESCUED, "{}"))}
        younger = {f.column: self._missing.get(f.attnum) for f in fields if f.name not in names}
        carried = {f.column: row.image[f.attnum] for f in fields if f.attnum in row.image}
        body = render.merged(fields, stored.source, {**younger, **carried})
        return Write(document, outcome.commit_lsn, body)

    def _send(self, writes: Sequence[Write], folded: Batch) -> int:
        """Send the writes and record dead letters; how many were refused."""
        generation = self.lease.generation
        refused = send(self._cluster, generation.writer, writes)
        in_a_row = self._refused_in_a_row + len(refused) if len(refused) == len(writes) else 0
        if refused and in_a_row >= REFUSED_IN_A_ROW:
            _, refusal = refused[0]
            raise IndexRefuses(generation.index, in_a_row, refusal.type, refusal.reason)
        self._refused_in_a_row = in_a_row
        if refused or self._open:
            self._record(writes, refused, folded)
        return len(refused)

    def _record(
        self, writes: Sequence[Write], refused: Sequence[tuple[Write, Refusal]], folded: Batch
    ) -> None:
        """Add the new dead letters, and settle those whose document was taken after all."""
        generation = self.lease.generation
        letters = [
            refusal.letter(generation, w.id, folded.outcomes[w.id].key, w.version, w.body)
            for w, refusal in refused
        ]
        again = {letter.id for letter in letters}
        settled = [self._open[w.id] for w in writes if w.id in self._open and w.id not in again]
        ends = [replace(letter, state=DeadLetterState.SETTLED, document=None) for letter in settled]
        self._letters.add([*letters, *ends])
        self._open |= {letter.id: letter for letter in letters}
        for letter in settled:
            del self._open[letter.id]
        for letter in letters:
            logger.warning("%s refused document %r: %s", letter.index, letter.id, letter.type)

    def _empty(self, at: Lsn) -> None:
        """Remove every document, as of a commit LSN."""
        generation = self.lease.generation
        for page in self._cluster.ids(generation.index):
            self.lease.keep()
            send(self._cluster, generation.writer, (Write(document, at, None) for document in page))


def _state(image: Image | None) -> FullRow | Deleted:
    return Deleted() if image is None else FullRow(image)
