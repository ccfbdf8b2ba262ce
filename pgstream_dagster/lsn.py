"""Write-ahead-log positions: text or numbers in, integers out; no I/O."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
"""As `pg_lsn_in` of Postgres reads it; `int` takes signs, blanks and digits of other scripts."""


class Lsn(int):
    """
    A position in the write-ahead log: a byte offset, printed as ``16/B374D848``.

    Differences of two are bytes. 0 is Postgres' `InvalidXLogRecPtr`: before everything.

    Source:
        https://www.postgresql.org/docs/current/datatype-pg-lsn.html
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """The position that Postgres prints as `text`; `ValueError` for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r} (expected e.g. '16/B374D848')")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


def lsn_of_number(_type: type, number: int) -> Lsn:
    """For decoders of msgspec: an LSN where it is stored as a number, which `int` encodes."""
    return Lsn(number)
