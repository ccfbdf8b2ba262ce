"""Refuse variable names that name nothing: `.ci/names.py FOLDER...` (style of CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REFUSED: Final = frozenset(
    {
        *("each", "found", "known", "of", "one", "said", "tell", "told", "wanted"),
        *("attend", "checkup", "keeper", "life", "lives", "pace", "proof", "twins"),
    }
)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module binds, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def main() -> int:
    """Print what is refused; 1 if there is anything."""
    refused = [
        f"{file}:{line}: {name!r} names nothing; say what the thing is"
        for folder in sys.argv[1:]
        for file in sorted(Path(folder).rglob("*.py"))
        for line, name in names(ast.parse(file.read_text(encoding="utf-8")))
        if name.strip("_").lower() in REFUSED
    ]
    print("\n".join(refused) or "no refused name")
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main())
