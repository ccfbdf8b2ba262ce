"""Hypothesis strategies: relations, images and whole blocks of pgoutput messages."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st

from pgstream_dagster.schema.table import Column, ReplicaIdentity, TableSchema
from tests.support.reference import encode
from tests.support.reference.encode import UNSENT
from tests.support.reference.pgoutput import Timeline

EXAMPLES: Final = int(os.environ.get("PGSTREAM_TEST_EXAMPLES", "60"))
"""Of each property; more when there is time."""

TEXTS: Final = st.one_of(
    st.sampled_from(["", "t", "0", "12 bytes is.", "13 bytes long", "é" * 7, "\U0001f40d" * 4]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(st.characters(codec="ascii"), max_size=300),
)
VALUES: Final = st.one_of(st.none(), TEXTS)
NAMES: Final = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15
)
OIDS: Final = st.integers(1, (1 << 32) - 1)
LSNS: Final = st.integers(1, (1 << 63) - 1)
TIMES: Final = st.integers(-(1 << 62), (1 << 62))


@st.composite
def schemas(draw: st.DrawFn, relation_id: int, epoch: int = 1) -> TableSchema:
    """A version of a relation: any identity, with or without a key, the key in any order."""
    names = draw(st.lists(NAMES, unique=True, max_size=8))
    identity = draw(st.sampled_from(ReplicaIdentity))
    key: list[str] = []
    if identity is not ReplicaIdentity.NOTHING and names:
        least = 0 if identity is ReplicaIdentity.FULL else 1
        key = draw(st.permutations(names))[: draw(st.integers(least, len(names)))]
    columns = tuple(Column(name, attnum, 25, "text") for attnum, name in enumerate(names, start=1))
    namespace, name = draw(NAMES), draw(NAMES)
    return TableSchema(epoch, relation_id, namespace, name, identity, columns, tuple(key))


@dataclass
class Script:
    """Messages and what is known of their relations."""

    messages: list[bytes] = field(default_factory=list)
    timeline: dict[int, list[tuple[int, TableSchema]]] = field(default_factory=dict)

    def describe(self, schema: TableSchema, xid: int | None) -> None:
        self.messages.append(encode.relation(schema, xid=xid))
        versions = self.timeline.setdefault(schema.relation_id, [])
        versions.append((len(self.messages) - 1, schema))

    def newest(self) -> list[TableSchema]:
        return [versions[-1][1] for versions in self.timeline.values()]


@dataclass(frozen=True)
class StreamedPart:
    messages: list[bytes]
    timeline: Timeline
    transaction: tuple[int, int, int, int]


@st.composite
def blocks(draw: st.DrawFn) -> Script:
    """Whole transactions, with what may lie between them."""
    script = Script()
    for oid in draw(st.lists(OIDS, unique=True, max_size=3)):
        script.timeline[oid] = [(-1, draw(schemas(oid)))]
    for _ in range(draw(st.integers(0, 4))):
        commit_lsn, at_us = draw(LSNS), draw(TIMES)
        script.messages.append(encode.begin(commit_lsn, at_us, draw(OIDS)))
        _fill(draw, script, xids=None)
        script.messages.append(encode.commit(commit_lsn, draw(LSNS), at_us))
        if draw(st.booleans()):
            script.messages.append(encode.message("p", b"x", transactional=False))
    return script


@st.composite
def streamed_parts(draw: st.DrawFn) -> StreamedPart:
    """A part of one streamed transaction."""
    script = Script()
    for oid in draw(st.lists(OIDS, unique=True, max_size=3)):
        script.timeline[oid] = [(0, draw(schemas(oid)))]
    _fill(draw, script, xids=OIDS)
    fields = (draw(LSNS), draw(LSNS), draw(TIMES), draw(OIDS))
    return StreamedPart(script.messages, script.timeline, fields)


def _fill(draw: st.DrawFn, script: Script, xids: st.SearchStrategy[int] | None) -> None:
    for _ in range(draw(st.integers(0, 8))):
        xid = None if xids is None else draw(xids)
        described = script.newest()
        step = draw(st.sampled_from("RRYOMTIIIIUUUUDD" if described else "RYOM"))
        match step:
            case "R":
                _describe(draw, script, xid)
            case "Y":
                script.messages.append(encode.type_name(draw(OIDS), "public", draw(NAMES), xid=xid))
            case "O":
                script.messages.append(encode.origin(draw(LSNS), draw(NAMES)))
            case "M":
                script.messages.append(_message(draw, xid))
            case "T":
                chosen = draw(st.lists(st.sampled_from(described), min_size=1, max_size=3))
                oids = [schema.relation_id for schema in chosen]
                options = draw(st.integers(0, 3))
                script.messages.append(encode.truncate(*oids, options=options, xid=xid))
            case _:
                script.messages.append(_row(draw, draw(st.sampled_from(described)), step, xid))


def _describe(draw: st.DrawFn, script: Script, xid: int | None) -> None:
    """A relation nobody saw, or another version of one that is known."""
    described = script.newest()
    again = bool(described) and draw(st.booleans())
    oid = draw(st.sampled_from(described)).relation_id if again else draw(OIDS)
    script.describe(draw(schemas(oid)), xid)


def _message(draw: st.DrawFn, xid: int | None) -> bytes:
    content = draw(st.one_of(TEXTS.map(str.encode), st.binary(max_size=20)))
    transactional = draw(st.booleans())
    return encode.message(draw(NAMES), content, transactional=transactional, xid=xid)


def _row(draw: st.DrawFn, schema: TableSchema, step: str, xid: int | None) -> bytes:
    oid = schema.relation_id
    names = [column.name for column in schema.columns]
    if step == "I":
        return encode.insert(oid, [draw(VALUES) for _ in names], xid=xid)
    tag = draw(st.sampled_from("KO"))
    if step == "D":
        return encode.delete(oid, _old(draw, schema, tag), tag=tag, xid=xid)
    old = _old(draw, schema, tag) if draw(st.booleans()) else None
    may_miss = st.one_of(VALUES, st.just(UNSENT))
    new = [draw(VALUES if old is None and name in schema.key else may_miss) for name in names]
    if old is not None and draw(st.booleans()):  # the key, or all of the row, as it was
        kept = schema.key if tag == "K" else names
        new = [
            before if name in kept else now
            for name, before, now in zip(names, old, new, strict=True)
        ]
    return encode.update(oid, new, old=old, tag=tag, xid=xid)


def _old(draw: st.DrawFn, schema: TableSchema, tag: str) -> list[object]:
    """Postgres fills what is not in a key tuple with NULLs; whatever is there means nothing."""
    others = st.one_of(VALUES, st.just(UNSENT))
    if tag == "K":
        others = draw(st.sampled_from([st.none(), others]))
    return [draw(VALUES if column.name in schema.key else others) for column in schema.columns]
