"""Control messages: any bytes are read to their end, or refused."""

from __future__ import annotations

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.wire import pgoutput
from tests.support.reference import encode
from tests.support.reference.strategies import EXAMPLES, schemas

KINDS: Final = st.sampled_from([bytes([kind]) for kind in b"BCORYTMSEcAIUDX"])


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(KINDS, st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_or_refused(kind: bytes, body: bytes, streamed: bool) -> None:
    try:
        pgoutput.parse(kind + body, streamed=streamed)
    except ProtocolError:
        return


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas(4_294_967_295), st.none() | st.integers(0, (1 << 32) - 1))
def test_a_relation_is_read_as_it_was_described(
    schema: encode.TableSchema, xid: int | None
) -> None:
    relation = pgoutput.parse(encode.relation(schema, xid=xid), streamed=xid is not None)
    assert isinstance(relation, pgoutput.Relation)
    assert (relation.namespace, relation.name) == (schema.namespace, schema.name)
    assert (relation.relation_id, relation.xid) == (schema.relation_id, xid)
    assert relation.identity is schema.identity
    assert [column.name for column in relation.columns] == [c.name for c in schema.columns]
