"""docs/guides/what-happens-when.md, from the scenarios."""

from __future__ import annotations

from itertools import groupby

from tests.faults.scenarios import SCENARIOS

HEAD = """\
# What happens when

Each line is a scenario of `make faults`: it is done to a running `pgstream stream` under load, and
afterwards the change log is compared with the source, row by row, and with a second, independent
replication slot, change by change. Errors are explained in [errors and what to do](../errors.md).
"""

COLUMNS = "| what happens | what pgstream does | scenario |\n| --- | --- | --- |\n"


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    for group, scenarios in groupby(SCENARIOS, key=lambda scenario: scenario.group):
        parts.append(f"\n## {group}\n\n{COLUMNS}")
        parts += [f"| {s.done} | {s.expected} | `{s.name}` |\n" for s in scenarios]
    return "".join(parts)
