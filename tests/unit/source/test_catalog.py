"""The pure parts of reading the catalog."""

from __future__ import annotations

import pytest

from pgstream_dagster.schema.ddl import only_element
from pgstream_dagster.source.catalog import is_shown


@pytest.mark.parametrize(
    ("array", "element"),
    [
        ("{1}", "1"),
        ("{t}", "t"),
        ('{""}', ""),
        ('{"NULL"}', "NULL"),
        ('{"a,b"}', "a,b"),
        (r'{"q\"u,{o}\\"}', 'q"u,{o}\\'),
        ('{"{1,2,NULL}"}', "{1,2,NULL}"),
        ("{(1,1),(0,0)}", "(1,1),(0,0)"),  # box: its arrays are delimited by a semicolon
        ('{"two\nlines \\\\n"}', "two\nlines \\n"),
    ],
)
def test_the_value_of_old_rows_is_read_from_its_array(array: str, element: str) -> None:
    assert only_element(array) == element


@pytest.mark.parametrize(
    ("snapshot", "xid", "shown"),
    [
        ("100:100:", 99, True),
        ("100:100:", 100, False),
        ("90:100:90,95", 95, False),
        ("90:100:90,95", 96, True),
        ("4294967300:4294967306:4294967300", 4, False),  # second round of 32 bits
        ("4294967300:4294967306:4294967300", 5, True),
        ("4294967300:4294967306:", 4294967290, True),  # given before the counter turned
        ("4294967290:4294967295:", 3, False),  # given after it turned
    ],
)
def test_a_transaction_shows_once_it_is_no_longer_running(
    snapshot: str, xid: int, shown: bool
) -> None:
    assert is_shown(snapshot, xid) is shown
