"""What a transformer raises for a value that it cannot transform."""

from __future__ import annotations


class Unfit(Exception):
    """
    A value cannot be transformed.

    `reason` is our own words: the messages of libraries often repeat the value.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NotSent(Unfit):
    """
    Another column that the result depends on was not sent.

    No policy of errors applies to it: without the column neither NULL nor the value would be right.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        super().__init__(
            f"it reads column {column!r}, which this change does not carry; set REPLICA IDENTITY"
            " FULL on the table, or read a column of its key"
        )
