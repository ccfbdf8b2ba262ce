"""A finding: one fact about the source, how serious it is, and its remedy. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pgstream_dagster.errors import PreflightFailed

NAMED: Final = 5
"""Tables that a sentence names."""


class Severity(StrEnum):
    """
    What a finding asks for.

    An error means lost changes, wrong rows, or a source that cannot be captured; a warning is a
    risk that a person may accept, such as a table that is left out; a note is a limit.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One fact about the source. `check` is its short, stable name.

    `leaves_out`: the relation that is not added to the publication because of it.
    """

    check: str
    severity: Severity
    fact: str
    remedy: str = ""
    leaves_out: int | None = None

    def __str__(self) -> str:
        return f"{self.fact}; {self.remedy}" if self.remedy else self.fact


def error(check: str, fact: str, remedy: str = "") -> Finding:
    """Changes would be lost, rows wrong, or nothing captured."""
    return Finding(check, Severity.ERROR, fact, remedy)


def warning(check: str, fact: str, remedy: str) -> Finding:
    """A risk that a person may accept."""
    return Finding(check, Severity.WARNING, fact, remedy)


def note(check: str, fact: str, remedy: str = "") -> Finding:
    """A limit to know of."""
    return Finding(check, Severity.NOTE, fact, remedy)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, notes last; otherwise in their order."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def require(findings: Iterable[Finding]) -> None:
    """Raise `PreflightFailed` with all errors among the findings, if there are any."""
    if errors := [str(finding) for finding in findings if finding.severity is Severity.ERROR]:
        raise PreflightFailed(errors)


def named(names: Sequence[str]) -> str:
    """The first few names; a statement next to it has all of them."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def counted(items: Sequence[object], noun: str) -> str:
    """`1 table`, `2 tables`."""
    return f"{len(items):,} {noun}" + ("" if len(items) == 1 else "s")
