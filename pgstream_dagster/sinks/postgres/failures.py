"""
What an error of the target means: asked from its SQLSTATE, never from its text. No I/O.

Source:
    https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import psycopg


class Failure(Enum):
    """What helps against an error."""

    ROW = "row"  # a value or a constraint: it is looked for in smaller groups of changes
    LATER = "later"  # connection, lock, deadlock, resources: the transaction is tried again
    RIGHTS = "rights"
    SCHEMA = "schema"  # a table, column or type is not what we took it for
    OTHER = "other"  # a person must look at it


_CLASSES: Final = {
    "08": Failure.LATER,  # connection
    "21": Failure.ROW,  # one statement would write a row twice
    "22": Failure.ROW,  # data
    "23": Failure.ROW,  # constraints
    "28": Failure.RIGHTS,
    "38": Failure.ROW,  # functions and triggers of the target
    "39": Failure.ROW,
    "3F": Failure.SCHEMA,
    "40": Failure.LATER,  # serialization, deadlock
    "42": Failure.SCHEMA,
    "44": Failure.ROW,  # a view's check option
    "53": Failure.LATER,  # resources
    "54": Failure.ROW,  # limits: a value too long for an index
    "57": Failure.LATER,  # an administrator, a shutdown, a time limit
    "58": Failure.LATER,  # the target's disk
    "P0": Failure.ROW,  # RAISE in a trigger of the target
}

_CODES: Final = {
    "25006": Failure.LATER,  # a standby, or a primary that was just demoted
    "25P03": Failure.LATER,
    "25P04": Failure.LATER,
    "42501": Failure.RIGHTS,
    "55006": Failure.LATER,  # in use
    "55P03": Failure.LATER,  # lock_timeout
}


def failure_of(error: psycopg.Error) -> Failure:
    """What an error of psycopg means."""
    code = error.sqlstate
    if code is not None:
        return _CODES.get(code) or _CLASSES.get(code[:2], Failure.OTHER)
    # Errors of the client have no SQLSTATE: a lost connection, or a text that cannot be sent (NUL).
    return Failure.ROW if isinstance(error, psycopg.DataError) else Failure.LATER


def reason_of(error: psycopg.Error) -> str:
    """
    The server's message and the constraint or column it names; not its detail, which has values.

    The message of a data error quotes the value, so there only the kind of error is kept.
    """
    diagnosis = error.diag
    code = error.sqlstate or ""
    is_quoted = code.startswith("22") or not diagnosis.message_primary
    text = _kind(error) if is_quoted else str(diagnosis.message_primary)
    if not code:
        text = str(error).strip().splitlines()[0] if str(error).strip() else _kind(error)
    named = (("constraint", diagnosis.constraint_name), ("column", diagnosis.column_name))
    names = ", ".join(f"{what} {name!r}" for what, name in named if name and name not in text)
    return f"{text}{f' ({names})' if names else ''}{f' [{code}]' if code else ''}"


def _kind(error: psycopg.Error) -> str:
    """`InvalidTextRepresentation` as words."""
    name = type(error).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
