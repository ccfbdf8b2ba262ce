"""Positions in the write-ahead log, as text and as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.lsn import Lsn


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1/CF54A048", 7_773_397_064),
        ("0/0", 0),
        ("16/B374D848", 0x16_B374_D848),
        ("FFFFFFFF/FFFFFFFF", (1 << 64) - 1),
        ("1/A", (1 << 32) + 10),
    ],
)
def test_a_position_and_its_text(text: str, number: int) -> None:
    assert Lsn.parse(text) == number
    assert Lsn.parse(text.lower()) == number
    assert str(Lsn(number)) == text


@given(st.integers(0, (1 << 64) - 1))
def test_every_position_is_read_back(number: int) -> None:
    assert Lsn.parse(str(Lsn(number))) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "1/", "/1", "1", "1/2/3", "G/0"),
        *("-1/0", "+1/0", "1_0/0", "0x1/0", " 1/0", "1/0 ", "1/0\n", "\uff11/0"),  # for `int` fine
        *("1/100000000", "100000000/0"),
    ],
)
def test_what_postgres_takes_for_no_position_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        Lsn.parse(text)
