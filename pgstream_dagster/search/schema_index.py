"""
The readable history of the schema in the search cluster: one small index, `pgstream-schema-log`.

A document for each version of each captured table, and for each command where the source reports
DDL. It repeats the lake's log of schemas: documents have ids of their place there, so writing one
again changes nothing, and an index that was deleted is made again. Versions that have not landed
are left out.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, Final

import msgspec

from pgstream_dagster.changelog.schema_log import SchemaEntry
from pgstream_dagster.errors import Retry, SearchError
from pgstream_dagster.search import control
from pgstream_dagster.search.answers import Json
from pgstream_dagster.search.cluster import quoted
from pgstream_dagster.search.session import SearchSession

logger = logging.getLogger(__name__)

SCHEMA_INDEX: Final = "pgstream-schema-log"
"""The index, one for all pipelines of a cluster."""

CHECK_SECONDS: Final = 1.0
"""Between two looks at the log of schemas, which costs a listing."""

_KEYWORDS: Final = ("pipeline", "schema_name", "table", "position", "tag")
MAPPING: Final = {
    "dynamic": False,
    "properties": {
        **{name: {"type": "keyword"} for name in _KEYWORDS},
        **{name: {"type": "long"} for name in ("epoch", "relation_id", "version", "ordinal")},
        "created_at": {"type": "date"},
        "text": {"type": "text"},
        "is_drop": {"type": "boolean"},
        "acked": {"type": "boolean"},
        "schema": {"type": "object", "enabled": False},
    },
}


class SchemaIndex:
    """What one opening of the cluster writes of it; one thread uses it."""

    def __init__(self, session: SearchSession) -> None:
        self._session = session
        self._written = set[str]()  # ids of documents
        self._read: object = None
        self._read_at, self._is_refused = float("-inf"), False

    def tick(self) -> int:
        """
        Write what has come to the log of schemas; how many documents.

        A refusal is logged, and tried again after a restart: no index waits for it.
        """
        if self._is_refused or time.monotonic() - self._read_at < CHECK_SECONDS:
            return 0
        self._read_at = time.monotonic()
        try:
            return self._write_new()
        except SearchError as error:
            if error.retry is Retry.LATER:
                raise
            self._is_refused = True
            logger.warning("index %s is not written: %s", SCHEMA_INDEX, error)
            return 0

    def _write_new(self) -> int:
        schema_log = self._session.opened.schema_log
        rows = schema_log.rows()
        if rows is self._read:
            return 0
        watermark, entries = self._session.watermark(), schema_log.entries(self._session.epoch)
        landed = [entry for entry in entries if entry.since < watermark]
        count = self._write(landed)
        if len(landed) == len(entries):
            self._read = rows
        return count

    def _write(self, entries: list[SchemaEntry]) -> int:
        """Write what is missing of these entries, which are all there are."""
        documents: dict[str, Json] = {}
        versions: dict[int, int] = {}
        for entry in entries:
            oid = entry.schema.relation_id
            versions[oid] = versions.get(oid, 0) + 1
            id_ = f"{self._session.pipeline.name}.{entry.schema.epoch}.{oid}.{versions[oid]}"
            documents[id_] = self._document(entry, versions[oid])
        if not documents.keys() <= self._written:
            self._written = self._stored()
        missing = documents.keys() - self._written
        for id_ in sorted(missing):
            cluster = self._session.cluster
            cluster.request("PUT", f"/{SCHEMA_INDEX}/_doc/{quoted(id_)}", documents[id_])
        self._written |= missing
        return len(missing)

    def _stored(self) -> set[str]:
        """The ids of the documents that are there, in an index that is made if it is not."""
        cluster = self._session.cluster
        control.create_small(cluster, SCHEMA_INDEX, MAPPING)
        return {id_ for page in cluster.ids(SCHEMA_INDEX) for id_ in page}

    def _document(self, entry: SchemaEntry, version: int) -> Json:
        schema, ddl = entry.schema, entry.ddl
        hides_values = bool(self._session.pipeline.config.modifiers)
        return {
            "pipeline": self._session.pipeline.name,
            "epoch": schema.epoch,
            "relation_id": schema.relation_id,
            "version": version,
            "schema_name": schema.namespace,
            "table": schema.name,
            "position": str(entry.since),
            "ordinal": None if ddl is None else ddl.ordinal,
            "created_at": None if ddl is None else ddl.committed_at_us // 1000,
            "tag": None if ddl is None else ddl.tag,
            "text": None if ddl is None or hides_values else ddl.text,
            "is_drop": entry.is_drop,
            "acked": True,
            "schema": _schema(entry, hides_values=hides_values),
        }


def _schema(entry: SchemaEntry, *, hides_values: bool) -> dict[str, Any]:
    """The table; where modifiers see values, without the texts that a value may be in."""
    description = None if entry.ddl is None else entry.ddl.description
    if description is not None:
        return msgspec.to_builtins(description.without_values() if hides_values else description)
    schema = entry.schema
    if hides_values:
        columns = tuple(replace(c, default=None, missing=None) for c in schema.columns)
        schema = replace(schema, columns=columns)
    return msgspec.json.decode(schema.to_json())
