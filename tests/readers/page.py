"""The page of readers, cell by cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "readers.md"


def cells() -> dict[tuple[str, str], str]:
    """Table, reader -> what the page says."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    header, body = lines[0], [line for line in lines if len(line) == len(lines[0])][2:]
    return {
        (line[0], name): cell
        for line in body
        for name, cell in zip(header[1:], line[1:], strict=True)
    }
