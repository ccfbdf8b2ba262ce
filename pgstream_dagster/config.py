"""
The pipeline file: what to capture, where to, how much at a time. How to reach things is not here.

Read once, frozen, unknown and repeated keys refused, every problem reported at once with its path.
`reference()` writes the documentation of every key from the same fields.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pgstream_dagster.errors import InvalidPipeline, NoSuchAlias
from pgstream_dagster.patterns import TablePattern

FLUSH_SECONDS: Final = 0.5
"""A commit costs about 35 ms and one small file; with two a second changes land within a second."""

FLUSH_ROWS: Final = 65_536
"""Larger commits measured no faster."""

FLUSH_BYTES: Final = 16 << 20
"""As many wide rows as make a file of a few MB compressed."""

MEMORY_BYTES: Final = 1 << 30
"""As much as the heap of the JVM beside it; only a row of more than 40 MB makes use of it."""

IDLE_ADVANCE_SECONDS: Final = 60.0
"""An empty commit a minute lets Postgres drop the WAL of other databases and tables."""

CATALOG_CHECK_SECONDS: Final = 60.0
"""How long a rewrite or a new partition may stay unseen; the look costs milliseconds."""

COPY_RANGES: Final = 8
"""Tasks per large table: past the cores of one machine they only add connections."""

COPY_PARALLEL: Final = 2
"""Tables copied at the same time, each with its own tasks and connections."""

KEEP_GENERATIONS: Final = 1
"""One former index behind an alias is a quick way back; it costs its disk."""

PREFIX: Final = "pgstream_"
"""Of slot and publication where the file names none."""

MAX_NAME: Final = 63
"""Postgres cuts longer identifiers (NAMEDATALEN - 1)."""

MAX_PIPELINE: Final = 40
"""Leaves room for the prefix, and for what a temporary slot adds to the slot's name."""

MAX_ALIAS: Final = 200
"""Search engines take names of 255 bytes; a generation's number and marker are added."""

MAX_SLOT: Final = 52
"""Leaves room for what a temporary slot adds to the name."""


def _slot_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{MAX_SLOT}}}", text):
        raise ValueError(f"must be 1 to {MAX_SLOT} lower-case letters, digits or _")
    return text


def _pipeline_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z][a-z0-9_]{{0,{MAX_PIPELINE - 1}}}", text):
        raise ValueError(
            f"must be 1 to {MAX_PIPELINE} lower-case letters, digits or _, beginning with a letter"
        )
    return text


def _identifier(text: str) -> str:
    if not text or len(text.encode()) > MAX_NAME or "\0" in text:
        raise ValueError(f"must be 1 to {MAX_NAME} bytes")
    return text


def _alias(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9][a-z0-9_.-]{{0,{MAX_ALIAS - 1}}}", text):
        raise ValueError(
            f"must be 1 to {MAX_ALIAS} lower-case letters, digits, _, . or -, beginning with a"
            " letter or digit"
        )
    return text


def _table_name(text: str) -> str:
    if not TablePattern.parse(text).is_exact:
        raise ValueError("must name one table: wildcards are not for an index")
    return text if "." in text else f"public.{text}"


def _pattern(text: str) -> str:
    TablePattern.parse(text)
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Alias = Annotated[str, AfterValidator(_alias)]
Identifier = Annotated[str, AfterValidator(_identifier)]


class Section(BaseModel):
    """A part of the file: frozen, no unknown keys, no guessing of types ("8" is no number)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        use_attribute_docstrings=False,
    )


class SourceConfig(Section):
    """What is read."""

    slot: Annotated[str, AfterValidator(_slot_name)] = Field(
        default="",
        validate_default=False,
        description="Replication slot on the source; made by `setup`, dropped by `teardown`."
        " Without it: `pgstream_` and the pipeline's name.",
    )
    publication: Annotated[str, AfterValidator(_identifier)] = Field(
        default="",
        validate_default=False,
        description="Publication on the source. One that exists already is used as it is and"
        " never changed or dropped. Without it: `pgstream_` and the pipeline's name.",
    )
    tables: Literal["all"] | Annotated[tuple[Pattern, ...], Field(min_length=1, strict=False)] = (
        Field(
            default="all",
            description="`all`, or a list of patterns such as `public.orders` or `shop.*`"
            " (`*` any text, `?` one character, no namespace: `public`). With `all` new tables"
            " join by themselves where `setup` could make the publication FOR ALL TABLES (a"
            " superuser, every table with a replica identity, nothing excluded); otherwise at the"
            " next `setup`.",
        )
    )
    exclude: Annotated[tuple[Pattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Patterns of tables that stay out, whatever `tables` says; `all` then becomes"
        " a list, which `setup` brings up to date.",
    )


class CaptureConfig(Section):
    """How the stream lands changes."""

    flush_seconds: float = Field(
        default=FLUSH_SECONDS,
        ge=0.01,
        le=3600,
        description="Seconds between commits while changes arrive; the first change after a quiet"
        " time is committed at once.",
    )
    flush_rows: int = Field(
        default=FLUSH_ROWS,
        ge=1,
        le=10_000_000,
        description="Changes after which a commit is made earlier.",
    )
    flush_bytes: int = Field(
        default=FLUSH_BYTES,
        ge=1 << 10,
        le=1 << 30,
        description="Bytes of decoded changes after which a commit is made earlier.",
    )
    memory_bytes: int = Field(
        default=MEMORY_BYTES,
        ge=128 << 20,
        le=64 << 30,
        description="Bytes that the stream's process may hold between its connection and the"
        " commit, above the 170 MB it holds when idle; the JVM and copies come on top. Batches are"
        " small and large transactions wait on the local disk, so only large rows need it. A row"
        " takes up to 8 times its size: one that does not fit is left out with a warning, and its"
        " table (a `gap`) until a copy fits. Received it is all the same, which takes twice its"
        " size for a moment. A copy refuses such rows (`RowTooLarge`).",
    )
    idle_advance_seconds: float = Field(
        default=IDLE_ADVANCE_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between the empty commits that move the slot forward while nothing"
        " published changes.",
    )
    catalog_check_seconds: float = Field(
        default=CATALOG_CHECK_SECONDS,
        ge=1,
        le=86_400,
        description="Seconds between looks at the catalog for tables that were added or rewritten"
        " and partitions that were attached or detached.",
    )
    messages: bool = Field(
        default=False,
        description="Whether transactional logical messages (pg_logical_emit_message) are landed,"
        " as rows of op message. Large transactions then wait on the server until they commit.",
    )


class CopyConfig(Section):
    """How tables are copied."""

    ranges: int = Field(
        default=COPY_RANGES,
        ge=1,
        le=1024,
        description="Tasks per table at most; a small table gets fewer. Each has a connection.",
    )
    parallel: int = Field(
        default=COPY_PARALLEL, ge=1, le=64, description="Tables copied at the same time."
    )


class IndexConfig(Section):
    """One search index, as its readers know it: an alias over one table's rows."""

    table: Annotated[str, AfterValidator(_table_name)] = Field(
        description="The table whose rows are the documents, as namespace.name."
    )
    id: Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None,
        description="Columns whose values make a document's id: for a table without a key, which"
        " needs REPLICA IDENTITY FULL then, and rows that differ in them. Without it: the key.",
    )
    columns: Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)] | None = Field(
        default=None,
        description="The columns to index; without it all of them, those added later too.",
    )
    mapping: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Column to the mapping that its field gets in place of the standard one, such"
        " as `{type: ip}`.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the index as the search engine takes them: shards, replicas,"
        " analysis.",
    )
    keep: int = Field(
        default=KEEP_GENERATIONS,
        ge=0,
        le=100,
        description="How many former generations stay behind the live one, for `rollback`.",
    )
    reindex: Literal["auto", "manual"] = Field(
        default="auto",
        description="`auto`: what the live index cannot follow (a copy of its table, a retyped"
        " column, other settings here) starts a re-index by itself; `manual`: it waits for"
        " `pgstream reindex`.",
    )

    def documents(self) -> str:
        """What the index and its documents are made of; another text asks for another index."""
        return self.model_dump_json(include={"id", "columns", "mapping", "settings"})


class PipelineConfig(Section):
    """One pipeline: one source database into one change log."""

    pipeline: Annotated[str, AfterValidator(_pipeline_name)] = Field(
        description="The pipeline's name; part of the names of its slot and publication, and of"
        " the watermark in the log, so it cannot change later."
    )
    source: SourceConfig = Field(
        default_factory=SourceConfig, description="What is read from Postgres."
    )
    capture: CaptureConfig = Field(
        default_factory=CaptureConfig, description="How the stream lands changes."
    )
    copying: CopyConfig = Field(
        default_factory=CopyConfig, alias="copy", description="How tables are copied."
    )

    search: dict[Alias, IndexConfig] = Field(
        default_factory=dict,
        description="Search indices: an alias each, over the rows of one table.",
    )

    @model_validator(mode="after")
    def _names(self) -> PipelineConfig:
        """Fill in the slot and the publication; the model is frozen for everybody else."""
        name = PREFIX + self.pipeline
        source = self.source.model_copy(
            update={
                "slot": self.source.slot or name,
                "publication": self.source.publication or name,
            }
        )
        object.__setattr__(self, "source", source)
        return self

    def index(self, alias: str) -> IndexConfig:
        """
        The index behind an alias.

        Raises:
            NoSuchAlias
        """
        if alias not in self.search:
            raise NoSuchAlias(alias, sorted(self.search))
        return self.search[alias]


def load(path: str | os.PathLike[str]) -> PipelineConfig:
    """
    The pipeline file at `path`.

    Raises:
        InvalidPipeline: it cannot be read, or anything in it is wrong; every problem at once.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidPipeline(os.fspath(path), [f"cannot be read: {reason}"]) from error
    return parse(text, os.fspath(path))


def parse(text: str, path: str = "pgstream.yaml") -> PipelineConfig:
    """The pipeline file's text; `path` is only for messages. Raises `InvalidPipeline`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidPipeline(path, [_yaml_problem(error)]) from error
    repeated = [] if node is None else list(_repeated(node, ()))
    if not isinstance(content, dict):
        raise InvalidPipeline(path, ["must be keys and values, beginning with 'pipeline: <name>'"])
    try:
        config = PipelineConfig.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = sorted({_problem(detail) for detail in _without_alternatives(error.errors())})
        raise InvalidPipeline(path, repeated + problems) from error
    if repeated:
        raise InvalidPipeline(path, repeated)
    return config


INTRODUCTION: Final = """\
`pgstream.yaml` says what a pipeline does. Unknown or repeated keys are errors, and all problems of
a file are reported at once.
"""


def reference() -> str:
    """`docs/reference/configuration.md`: every key with meaning, unit, limits and default."""
    parts = [
        "# Configuration\n",
        "<!-- generated by pgstream_dagster.config.reference(); a test keeps it so -->\n",
        INTRODUCTION,
        _table("", PipelineConfig),
    ]
    for name, field in PipelineConfig.model_fields.items():
        section = _section_of(field)
        if section is not None:
            key = field.alias or name
            prefix = f"{key}.<name>." if get_args(field.annotation) else f"{key}."
            parts.append(f"## {key}\n\n{field.description}\n")
            parts.append(_table(prefix, section))
    return "\n".join(parts)


def _table(prefix: str, section: type[Section]) -> str:
    lines = ["| key | default | limits | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        lines.append(f"| `{key}` | {_default(field)} | {_limits(field)} | {field.description} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "none" if field.default_factory is dict else "see below"
    if field.default is None:
        return "as said"
    if field.default is PydanticUndefined:
        return "required"
    if field.default == "":
        return "from the name"
    if field.default == ():
        return "none"
    return f"`{field.default}`"


def _limits(field: FieldInfo) -> str:
    least = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    most = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    return "" if least is None else f"{least:,} to {most:,}"


_MEANINGS: Final[Mapping[str, str]] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "model_type": "must be keys and values",
    "model_attributes_type": "must be keys and values",
    "dict_type": "must be keys and values",
    "literal_error": "must be 'all' or a list of patterns",
    "tuple_type": "must be 'all' or a list of patterns",
    "too_short": "must have at least one entry",
}


def _problem(detail: ErrorDetails) -> str:
    """`path: what it must be`."""
    kind, context = detail["type"], detail.get("ctx", {})
    # A union names its members in the path; only keys and positions are the file's.
    steps = [s for s in detail["loc"] if not (isinstance(s, str) and re.search(r"[^\w]", s))]
    steps = [s for s in steps if s not in ("constrained-str", "tuple")]
    path = _path(steps)
    if kind == "extra_forbidden":
        return f"{path}: unknown key{_did_you_mean(steps)}"
    if kind == "greater_than_equal":
        return f"{path}: must be at least {context['ge']:,}"
    if kind == "less_than_equal":
        return f"{path}: must be at most {context['le']:,}"
    if kind == "literal_error" and len(steps) == len(detail["loc"]):  # no part of a union
        return f"{path}: must be {context['expected']}"
    if kind == "value_error":
        return f"{path}: {context['error']}"
    return f"{path}: {_MEANINGS.get(kind, detail['msg'])}"


def _without_alternatives(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Of a value that was meant as a list, only what is wrong with the list."""
    choice = ("literal_error", "tuple_type")
    tagged = [d for d in details if any(not re.fullmatch(r"\w+", str(s)) for s in d["loc"])]
    inside = {d["loc"][:2] for d in tagged if d["type"] not in choice}
    return [d for d in details if d["loc"][:2] not in inside or d["type"] not in choice]


def _path(steps: Sequence[int | str]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"


def _did_you_mean(steps: Sequence[int | str]) -> str:
    section: type[Section] | None = PipelineConfig
    remaining = [str(step) for step in steps[:-1]]
    while remaining and section is not None:
        field = _field(section, remaining.pop(0))
        section = None if field is None else _section_of(field)
        if field is not None and section is not field.annotation and remaining:
            remaining.pop(0)  # the name of one of several
    names = [] if section is None else [f.alias or n for n, f in section.model_fields.items()]
    close = difflib.get_close_matches(str(steps[-1]), names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if names else ""


def _field(section: type[Section], key: str) -> FieldInfo | None:
    fields = section.model_fields.items()
    return next((field for name, field in fields if (field.alias or name) == key), None)


def _section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a key holds, or that each of its named entries holds."""
    types = (t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type))
    return next((t for t in types if issubclass(t, Section)), None)


def _repeated(node: Node, path: tuple[int | str, ...]) -> Iterator[str]:
    """YAML takes the last of two equal keys and says nothing."""
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*path, index))
    elif isinstance(node, MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, ScalarNode) else "?"
            if name in seen:
                first, again = seen[name], key.start_mark.line + 1
                yield f"{_path((*path, name))}: given twice, in lines {first} and {again}"
            seen[name] = key.start_mark.line + 1
            yield from _repeated(value, (*path, name))


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{getattr(error, 'problem', None) or 'is no YAML'}"
