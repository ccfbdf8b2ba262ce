"""What the documents name is there: files, make targets, commands."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import pgstream_dagster
from pgstream_dagster import errors
from pgstream_dagster.changelog.lake import Lake

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def code_of(document: Path) -> str:
    """Everything that the document shows as code."""
    return "\n".join(CODE.findall(document.read_text(encoding="utf-8")))


def without_blocks(document: Path) -> str:
    """The document without its blocks of code."""
    text = document.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(document: Path) -> set[str]:
    """The anchors of a document's headings, as Markdown viewers make them."""
    headings = re.findall(r"^#+ +(.+)$", without_blocks(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = CODE.sub("", document.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue  # another site
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:^|[`\s])make ([a-z][a-z-]*)\b", code_of(document), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pgstream_commands_exist(document: Path) -> None:
    from pgstream_dagster.cli.commands import pgstream

    named = set(re.findall(r"(?:^|[`\s/])pgstream ([a-z]+)\b", code_of(document), re.MULTILINE))
    assert named <= set(pgstream.commands)


def test_every_error_has_a_line_in_the_errors_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    leaves = _leaves(errors.PgstreamError)
    assert not sorted(leaf.__name__ for leaf in leaves if f"`{leaf.__name__}`" not in page)


def _leaves(error: type[errors.PgstreamError]) -> list[type[errors.PgstreamError]]:
    below = [leaf for child in error.__subclasses__() for leaf in _leaves(child)]
    return below or [error]


def test_page_of_the_python_api_names_everything_that_is_public():
    page = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in pgstream_dagster.__all__ if f"`{name}" not in page]
    assert missing == []


def test_page_of_the_python_api_says_of_a_function_what_its_docstring_does():
    page = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    public = {name: getattr(pgstream_dagster, name) for name in pgstream_dagster.__all__}
    summaries = {
        name: (inspect.getdoc(function) or "").splitlines()[0]
        for name, function in public.items()
        if inspect.isfunction(function)
    }
    assert not [name for name, text in summaries.items() if f"| {text}" not in page]


def test_architecture_names_every_folder_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", page, re.MULTILINE))
    package = ROOT / "pgstream_dagster"
    assert rows.keys() == {path.parent.name for path in package.glob("*/__init__.py")}
    for folder, start in rows.items():
        for file in re.findall(r"`([\w.]+\.py)`", start):
            assert (package / folder / file).exists(), f"{folder}/{file}"


def test_folder_says_what_it_may_import() -> None:
    contracts = _contracts()
    assert not [name for name, text in contracts.items() if "May import" not in text]


def test_folder_without_layers_below_imports_only_what_it_says() -> None:
    undeclared: dict[str, set[str]] = {}
    for name, text in _contracts().items():
        [contract] = re.findall(r"May import ([^.;]*)", text)
        if not re.search("below|engine", contract):
            declared = {name, *re.findall(r"`(\w+)`", contract)}
            undeclared[name] = _imports(ROOT / "pgstream_dagster" / name) - declared
    assert not {name: parts for name, parts in undeclared.items() if parts}


def _contracts() -> dict[str, str]:
    """The docstring of each folder of the package, in one line."""
    files = (ROOT / "pgstream_dagster").glob("*/__init__.py")
    trees = {file.parent.name: ast.parse(file.read_text()) for file in files}
    return {name: " ".join((ast.get_docstring(t) or "").split()) for name, t in trees.items()}


def _imports(folder: Path) -> set[str]:
    """The parts of the package that the modules of a folder import."""
    imported = re.compile(r"^ *(?:from|import) pgstream_dagster\.(\w+)", re.MULTILINE)
    return {part for file in folder.rglob("*.py") for part in imported.findall(file.read_text())}


def test_architecture_names_every_single_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (ROOT / "pgstream_dagster").glob("*.py")} - {"__init__"}
    assert not sorted(module for module in modules if f"`{module}`" not in page)


def test_architecture_names_every_table_of_the_lake_and_the_backup_all_that_need_one() -> None:
    tables = {name for name, member in vars(Lake).items() if isinstance(member, property)}
    tables -= {"uri", "is_made", "typed_folder"}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    state = page[page.index("## State") : page.index("## Promises")]
    assert not sorted(table for table in tables if f"`{table}`" not in state)
    backup = (ROOT / "docs" / "guides" / "operate.md").read_text(encoding="utf-8")
    assert not sorted(table for table in tables if f"`{table}`" not in backup)


def test_architecture_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/\w+\.py)`", page))
    assert named
    assert not [path for path in named if not (ROOT / "pgstream_dagster" / path).exists()]


GENERATED = {"configuration.md", "environment.md", "search-types.md", "command-line.md"}
GENERATED |= {"what-happens-when.md", "transformers.md", "table-types.md", "ddl-effects.md"}


def prose_of(document: Path) -> list[str]:
    """The lines that are neither code, nor a table, nor a picture."""
    return [
        line for line in without_blocks(document).splitlines() if not re.match(r" *(\||!\[)", line)
    ]


ONE_PIECE = re.compile(r"\s*([-*] |\d+\. )?(`[^`]+`|<?https?://\S+)[.,;:]?")
"""A line of one code span, or of one address: it cannot be wrapped."""


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if document.name not in GENERATED],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_prose_is_wrapped(document: Path) -> None:
    for line in prose_of(document):
        assert len(line) <= 100 or ONE_PIECE.fullmatch(line), line
