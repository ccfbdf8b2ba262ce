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


class Unanswered(Unfit):
    """
    The result is not to be had, whatever the value is.

    No policy for values applies to it: neither NULL nor the value itself would be right.
    """


class NotSent(Unanswered):
    """Another column that the result depends on was not sent."""

    def __init__(self, column: str) -> None:
        self.column = column
        super().__init__(
            f"it reads column {column!r}, which this change does not carry; set REPLICA IDENTITY"
            " FULL on the table, or read a column of its key"
        )


class Away(Unanswered):
    """The server that gives the result does not answer."""
