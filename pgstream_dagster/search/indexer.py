"""
The writer of one generation: batches of the log in, documents and progress out.

Whatever ends it, the next one begins at the stored progress and writes the same documents again,
with the same versions. A document that lacks columns is completed before it is written: from the
index, if what is there was written before this batch, else from the fold of the log. So nothing
is completed from a document that a crash, a refusal or another writer has left in another state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa

from pgstream_dagster.changelog.dead_letters import DeadLetter, DeadLetters, LetterState
from pgstream_dagster.changelog.schema_log import SchemaLog
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.errors import IndexRefuses, UnknownSchema
from pgstream_dagster.failpoints import reach
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.schema.table import TableSchema, missing_values
from pgstream_dagster.search import batch, generations, render
from pgstream_dagster.search.batch import Batch, Gone, Image, Outcome, Rest, Whole
from pgstream_dagster.search.bulk import Refused, Write, send
from pgstream_dagster.search.cluster import Cluster, Stored
from pgstream_dagster.search.control import Lease
from pgstream_dagster.search.fields import RESCUED
from pgstream_dagster.search.follow import follow
from pgstream_dagster.search.ids import document_id
from pgstream_dagster.search.raw_json import members

logger = logging.getLogger(__name__)

REFUSED_IN_A_ROW: Final = 50
"""So many documents refused and none taken: the index is at fault, not they."""

SAVE_SECONDS: Final = 1.0
"""Between records of progress while nothing of the generation's table changes."""

KeyRows: TypeAlias = Callable[[Sequence[tuple["str | None", ...]], Lsn], Mapping[str, Image]]
"""Of some keys the rows as of a watermark, by document id: the fold, for a few."""


class Indexer:
    """Applies batches to the generation that `lease` holds; one thread uses it."""

    def __init__(
        self,
        cluster: Cluster,
        lease: Lease,
        config: IndexConfig,
        schema_log: SchemaLog,
        letters: DeadLetters,
        key_rows: KeyRows,
    ) -> None:
        self.lease, self.delivered = lease, lease.generation.delivered
        self._cluster, self._config, self._key_rows = cluster, config, key_rows
        self._schema_log, self._letters = schema_log, letters
        self._open = letters.open(lease.generation.index)
        self._schemas: dict[int, TableSchema] = {}
        self._missing: dict[int, str | None] = {}
        self._schema_id: int | None = None
        self._refused_in_a_row, self._saved = 0, time.monotonic()
        self._read_schemas()

    def apply(self, changes: pa.Table, watermark: Lsn) -> int:
        """
        Write what the changes mean, then that everything up to `watermark` is delivered.

        Shape:
            changes: all landed changes of the generation's relation after what is delivered, up to
                the watermark, in order.

        Raises:
            SearchUnreachable: nothing is lost; the same call again.
            LeaseLost: another writer has taken over.
            IndexRefuses, IndexGone, SearchRefused, SearchFailed
        """
        generation = self.lease.generation
        if changes.num_rows == 0 or generation.is_closed:
            self._pass(watermark)
            return 0
        self._know(set(changes.column("schema_id").to_pylist()) - {None})
        found = batch.fold(changes, self._schemas, generation.id_columns)
        for schema_id in found.schema_ids:
            self._follow(self._schemas[schema_id])
        self.lease.require()
        if found.emptied_at is not None:
            self._empty(found.emptied_at)
        writes = list(self._writes(found, watermark))
        reach("index.completed")
        self._send(writes, found)
        reach("index.sent")
        if found.gap_at is not None:
            why = f"changes are missing from {Lsn(found.gap_at)} on"
            self.lease.save(outdated=why, is_closed=True)
        self.delivered = watermark
        self.save()
        reach("index.delivered")
        return len(writes)

    def rewrite(self, keys: Sequence[tuple[str | None, ...]]) -> list[Refused]:
        """Write these keys' rows as of what is delivered; those that are refused again."""
        delivered = self.delivered
        rows = self._key_rows(keys, delivered)
        found = Batch()
        for key in keys:
            image = rows.get(document := document_id(key))
            state = Gone() if image is None else Whole(image)
            found.outcomes[document] = Outcome(state, delivered - 1, 0, key)
        self.lease.require()
        return self._send([self._write(*each) for each in found.outcomes.items()], found)

    def save(self) -> None:
        """Record the progress, if there was any."""
        if self.delivered > self.lease.generation.delivered:
            self.lease.save(delivered=self.delivered, refused=len(self._open))
            self._saved = time.monotonic()

    def _pass(self, watermark: Lsn) -> None:
        """There was nothing for this generation; that is recorded now and then."""
        self.delivered = max(watermark, self.delivered)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()
        self.lease.keep()

    # --- the table's columns ---------------------------------------------------------------

    def _know(self, schema_ids: set[int]) -> None:
        if not schema_ids <= self._schemas.keys():
            self._read_schemas()
        for unknown in schema_ids - self._schemas.keys():
            raise UnknownSchema(unknown, self._config.table)

    def _read_schemas(self) -> None:
        generation = self.lease.generation
        versions = self._schema_log.versions(generation.epoch, generation.relation_id)
        self._schemas = {version.schema_id: version for version in versions}
        self._missing = missing_values(versions)

    def _follow(self, schema: TableSchema) -> None:
        """Before the first document that needs it, the index has the field."""
        if schema.schema_id == self._schema_id:
            return
        generation = self.lease.generation
        followed = follow(generation.fields, schema, self._config)
        if followed.fields != generation.fields or followed.outdated:
            properties = {field.name: field.mapping for field in followed.added}
            aliases = generations.alias_fields(followed.renamed)
            generations.add_fields(self._cluster, generation, properties | aliases)
            outdated = followed.outdated or generation.outdated
            self.lease.save(fields=followed.fields, outdated=outdated)
            logger.info("%s follows %s: %s", generation.index, schema.full_name, outdated or "all")
        self._schema_id = schema.schema_id

    # --- documents -------------------------------------------------------------------------

    def _writes(self, found: Batch, watermark: Lsn) -> Iterator[Write]:
        """What every outcome comes to, completed."""
        stored = self._stored(found)
        lacking = [
            outcome.key
            for outcome in found.outcomes.values()
            if isinstance(outcome.state, Rest) and outcome.state.origin not in stored
        ]
        rows = self._key_rows(lacking, watermark) if lacking else {}
        for document, outcome in found.outcomes.items():
            state = outcome.state
            if isinstance(state, Rest) and state.origin in stored:
                yield self._merged(document, outcome, state, stored[state.origin])
            elif isinstance(state, Rest):
                image = rows.get(document)
                known = Gone() if image is None else Whole(image)
                yield self._write(document, outcome._replace(state=known))
            else:
                yield self._write(document, outcome)

    def _stored(self, found: Batch) -> dict[str, Stored]:
        """The documents to complete from; only those that this batch has not touched yet."""
        before = self.delivered
        wanted = [origin for origin in batch.origins(found) if origin not in self._open]
        there = self._cluster.sources(self.lease.generation.index, wanted) if wanted else {}
        return {origin: stored for origin, stored in there.items() if stored.version < before}

    def _write(self, document: str, outcome: Outcome) -> Write:
        if not isinstance(outcome.state, Whole):
            return Write(document, outcome.commit_lsn, None)
        image, fields = outcome.state.image, self.lease.generation.fields
        row = {f.column: image.get(f.attnum, self._missing.get(f.attnum)) for f in fields}
        return Write(document, outcome.commit_lsn, render.document(fields, row))

    def _merged(self, document: str, outcome: Outcome, rest: Rest, stored: Stored) -> Write:
        """Columns younger than the stored document have the value that Postgres shows for them."""
        fields, had = self.lease.generation.fields, members(stored.source)
        known = {*had, *members(had.get(RESCUED, "{}"))}
        younger = {f.column: self._missing.get(f.attnum) for f in fields if f.name not in known}
        carried = {f.column: rest.image[f.attnum] for f in fields if f.attnum in rest.image}
        body = render.merged(fields, stored.source, {**younger, **carried})
        return Write(document, outcome.commit_lsn, body)

    # --- the index ----------------------------------------------------------------------------

    def _send(self, writes: Sequence[Write], found: Batch) -> list[Refused]:
        generation = self.lease.generation
        refused = send(self._cluster, generation.writer, writes)
        in_a_row = self._refused_in_a_row + len(refused) if len(refused) == len(writes) else 0
        if refused and in_a_row >= REFUSED_IN_A_ROW:
            first = refused[0]
            why = first.refusal
            raise IndexRefuses(generation.index, in_a_row, why.type, why.reason)
        self._refused_in_a_row = in_a_row
        self._record(writes, refused, found)
        return refused

    def _record(self, writes: Sequence[Write], refused: Sequence[Refused], found: Batch) -> None:
        """Dead letters: those of now, and the end of those whose document was taken after all."""
        if not refused and not self._open:
            return
        letters = [self._letter(each, found.outcomes[each.write.id]) for each in refused]
        again = {letter.id for letter in letters}
        settled = [self._open[w.id] for w in writes if w.id in self._open and w.id not in again]
        ends = [replace(letter, state=LetterState.SETTLED, document=None) for letter in settled]
        self._letters.add([*letters, *ends])
        self._open |= {letter.id: letter for letter in letters}
        for letter in settled:
            del self._open[letter.id]
        for letter in letters:
            logger.warning("%s refused document %r: %s", letter.index, letter.id, letter.type)

    def _letter(self, refused: Refused, outcome: Outcome) -> DeadLetter:
        generation = self.lease.generation
        return DeadLetter(
            generation.index,
            refused.write.id,
            outcome.key,
            generation.epoch,
            Lsn(refused.write.version),
            LetterState.REFUSED,
            refused.refusal.type,
            refused.refusal.reason,
            refused.write.body,
        )

    def _empty(self, at: int) -> None:
        """Remove every document there is, as of a commit LSN."""
        generation = self.lease.generation
        for page in self._cluster.ids(generation.index):
            self.lease.keep()
            send(self._cluster, generation.writer, (Write(document, at, None) for document in page))
