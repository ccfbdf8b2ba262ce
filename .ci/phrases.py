"""Refuse phrases that plain English has a word for: `.ci/phrases.py FILE_OR_FOLDER...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REFUSED: Final = {
    r"nobody": "no person, no process; or say it without: 'cannot be guessed'",
    r"in front of": "before, or where exactly",
    r"stands? in|stood in": "is in",
    r"for good": "permanently, forever",
    r"anew": "again",
    r"of now": "current",
    r"as said": "the value, or where it is said",
    r"told apart|tell apart": "distinguished, identified",
}
"""Patterns, and what to write in their place."""

SUFFIXES: Final = frozenset({".md", ".yaml"})


def files(paths: list[str]) -> Iterator[Path]:
    """The documents among the arguments."""
    for path in map(Path, paths):
        yield from [path] if path.is_file() else sorted(path.rglob("*"))


def refused(text: str) -> Iterator[tuple[int, str, str]]:
    """The phrases in a text: line, phrase, and what to write in its place."""
    for pattern, instead in REFUSED.items():
        wrapped = pattern.replace(" ", r"[\s#]+")  # also over the lines of a comment
        for match in re.finditer(rf"\b(?:{wrapped})\b", text, re.IGNORECASE):
            phrase = re.sub(r"[\s#]+", " ", match[0])
            yield text.count("\n", 0, match.start()) + 1, phrase, instead


def main() -> int:
    """Print what is refused; 1 if there is anything."""
    lines = [
        f"{file}:{line}: {phrase!r}: {instead}"
        for file in files(sys.argv[1:])
        if file.suffix in SUFFIXES
        for line, phrase, instead in sorted(refused(file.read_text(encoding="utf-8")))
    ]
    print("\n".join(lines) or "no refused phrase")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
