"""Write-ahead-log positions: text or numbers in, integers out; no I/O."""

from __future__ import annotations


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
        high, slash, low = text.partition("/")
        try:
            if not slash:
                raise ValueError
            return cls(int(high, 16) << 32 | int(low, 16))
        except ValueError:
            raise ValueError(f"not an LSN: {text!r} (expected e.g. '16/B374D848')") from None

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


def lsn_of_number(_type: type, number: int) -> Lsn:
    """For decoders of msgspec: an LSN where it is stored as a number, which `int` encodes."""
    return Lsn(number)
