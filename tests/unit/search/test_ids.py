"""Ids of documents."""

from __future__ import annotations

import hashlib

import pytest

from pgstream_dagster.search.ids import document_id


def hashed(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (["7"], "7"),
        (["a|b\\"], "a|b\\"),
        (["7", "a|b\\"], "7|a\\|b\\\\"),
        (["", ""], "|"),
        ([None, "\\N"], "\\N|\\\\N"),
        (["é" * 256], "é" * 256),
        (["é" * 257], hashed("é" * 257)),
        (["a" * 256, "b" * 256], hashed("a" * 256 + "|" + "b" * 256)),
        ([""], hashed("")),
        (["sha256:x"], hashed("sha256:x")),
        (["sha256:x", "y"], hashed("sha256:x|y")),
        ([None], "sha256:null"),
    ],
)
def test_an_id_is_the_key(key: list[str | None], expected: str) -> None:
    assert document_id(key) == expected
    assert 0 < len(document_id(key).encode()) <= 512
