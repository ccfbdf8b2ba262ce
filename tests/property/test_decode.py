"""The column-wise decoder against the slow one: any block, and any damage to it."""

from __future__ import annotations

from typing import Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgstream_dagster.errors import ProtocolError
from pgstream_dagster.wire import columns
from pgstream_dagster.wire.columns import Decoded, decode
from pgstream_dagster.wire.messages import TransactionFields, join
from tests.support.reference import pgoutput as reference
from tests.support.reference.change import Change
from tests.support.reference.strategies import (
    EXAMPLES,
    Script,
    StreamedPart,
    blocks,
    streamed_parts,
)

effort: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,  # a shared machine has pauses
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
more_effort: Final = settings(effort, max_examples=3 * EXAMPLES)


class Unsent(Exception):
    """An INSERT without one of its values."""


def complete(done: Decoded) -> Decoded:
    if done.unplaced:
        raise Unsent
    done.table.validate(full=True)
    return done


def decoded(
    messages: list[bytes], timeline: reference.Timeline, *, header: int = 0
) -> list[Change]:
    behind = [bytes(header) + message for message in messages]
    done = complete(decode(join(behind, header=header), timeline, epoch=1))
    return reference.as_changes(done.table)


def decoded_part(part: StreamedPart, messages: list[bytes], first_ordinal: int = 0) -> list[Change]:
    done = complete(
        decode(
            join(messages, header=0, streamed=True),
            part.timeline,
            epoch=1,
            transaction=TransactionFields(*part.transaction),
            first_ordinal=first_ordinal,
        )
    )
    assert done.next_ordinal == first_ordinal + len(done.table)
    return reference.as_changes(done.table)


def obvious_part(part: StreamedPart, messages: list[bytes], first_ordinal: int = 0) -> list[Change]:
    return reference.changes(
        messages,
        part.timeline,
        streamed=True,
        transaction=part.transaction,
        first_ordinal=first_ordinal,
    )


@effort
@given(blocks())
def test_whole_transactions_decode_as_the_obvious_decoder_says(script: Script) -> None:
    expected = reference.changes(script.messages, script.timeline)
    assert decoded(script.messages, script.timeline, header=25) == expected


@effort
@given(streamed_parts(), st.integers(0, 1 << 40))
def test_a_streamed_part_decodes_as_the_obvious_decoder_says(
    part: StreamedPart, first_ordinal: int
) -> None:
    expected = obvious_part(part, part.messages, first_ordinal)
    assert decoded_part(part, part.messages, first_ordinal) == expected


@effort
@given(blocks(), st.integers(1, 20))
def test_how_many_fields_are_decoded_at_once_changes_nothing(script: Script, slots: int) -> None:
    expected = decoded(script.messages, script.timeline)
    with mock.patch.object(columns, "CHUNK_SLOTS", slots):
        assert decoded(script.messages, script.timeline) == expected


@st.composite
def damage(draw: st.DrawFn, messages: list[bytes]) -> list[bytes]:
    """`messages` with one of them cut, grown, changed in some bytes, repeated, lost or moved."""
    at = draw(st.integers(0, len(messages) - 1))
    victim, others = messages[at], messages[:at] + messages[at + 1 :]
    place = draw(st.integers(0, len(victim)))
    junk = draw(st.binary(min_size=1, max_size=4))
    match draw(
        st.sampled_from(["cut", "grow", "change", "flip", "swap", "lose", "repeat", "move"])
    ):
        case "cut":
            changed = victim[:place] or b"\0"
        case "grow":
            changed = victim[:place] + junk + victim[place:]
        case "change":
            changed = (victim[:place] + junk + victim[place + len(junk) :])[: len(victim)]
        case "flip":
            bit = draw(st.integers(0, 8 * len(victim) - 1))
            flipped = int.from_bytes(victim) ^ (1 << bit)
            changed = flipped.to_bytes(len(victim))
        case "swap":
            letters = bytes(draw(st.sampled_from(b"BCIUDTMRYOSEcAKONtnub\0\xff")) for _ in range(1))
            changed = (victim[:place] + letters + victim[place + 1 :])[: len(victim)]
        case "lose":
            return others
        case "repeat":
            return [*messages[:at], victim, *messages[at:]]
        case _:
            to = draw(st.integers(0, len(others)))
            return [*others[:to], victim, *others[to:]]
    return [*messages[:at], changed, *messages[at + 1 :]]


@more_effort
@given(st.data(), blocks().filter(lambda script: script.messages))
def test_damaged_bytes_are_refused_or_mean_what_they_say(
    data: st.DataObject, script: Script
) -> None:
    messages = data.draw(damage(script.messages))
    try:
        expected = reference.changes(messages, script.timeline)
    except reference.Damaged:
        with pytest.raises((ProtocolError, Unsent)):
            decoded(messages, script.timeline)
    else:
        assert decoded(messages, script.timeline) == expected


@more_effort
@given(st.data(), streamed_parts().filter(lambda part: part.messages))
def test_a_damaged_streamed_part_is_refused_or_means_what_it_says(
    data: st.DataObject, part: StreamedPart
) -> None:
    messages = data.draw(damage(part.messages))
    try:
        expected = obvious_part(part, messages)
    except reference.Damaged:
        with pytest.raises((ProtocolError, Unsent)):
            decoded_part(part, messages)
    else:
        assert decoded_part(part, messages) == expected


@effort
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), blocks())
def test_garbage_is_refused(messages: list[bytes], script: Script) -> None:
    try:
        expected = reference.changes(messages, script.timeline)
    except reference.Damaged:
        with pytest.raises((ProtocolError, Unsent)):
            decoded(messages, script.timeline)
    else:
        assert decoded(messages, script.timeline) == expected


@effort
@given(streamed_parts(), st.data())
def test_a_streamed_transaction_may_be_cut_anywhere(
    part: StreamedPart, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(part.messages)))
    first = decoded_part(part, part.messages[:cut])
    shifted = {
        oid: [(index - cut, schema) for index, schema in versions]
        for oid, versions in part.timeline.items()
    }
    rest = StreamedPart(part.messages[cut:], shifted, part.transaction)
    whole = decoded_part(part, part.messages)
    assert first + decoded_part(rest, rest.messages, len(first)) == whole
