"""
The statements we run, one per file: `statement(name)` is the only Python of this package.

A file's header comment says purpose, parameters and what "no row" means; it is for its reader and
is not sent to the server. May import nothing of the package.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import LiteralString, cast


@cache
def statement(name: str) -> LiteralString:
    """
    The text of `sql/<name>.sql` without its header comment, e.g. `statement("source/slot_state")`.

    Typed as a literal: every statement is a file of this package, never put together from data.
    """
    folder, _, file = name.rpartition("/")
    text = files(__name__).joinpath(*folder.split("/"), f"{file}.sql").read_text(encoding="utf-8")
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        del lines[0]
    return cast("LiteralString", "\n".join(lines).strip())
