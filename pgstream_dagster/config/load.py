"""Reading the pipeline file; every problem of it is reported at once, with its path."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pgstream_dagster.config.kafka_places import kafka_problems
from pgstream_dagster.config.modifier_places import modifier_problems
from pgstream_dagster.config.pipeline import PipelineConfig
from pgstream_dagster.config.plugins import settings_of
from pgstream_dagster.config.reference import field_of, section_of
from pgstream_dagster.config.section import Section
from pgstream_dagster.config.sinks import SinkConfig
from pgstream_dagster.config.transformers import BY_NAME
from pgstream_dagster.errors import InvalidPipeline


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
    beforehand = [] if node is None else list(_repeated(node, ()))
    if not isinstance(content, dict):
        raise InvalidPipeline(path, ["must be keys and values, beginning with 'pipeline: <name>'"])
    beforehand += [*modifier_problems(content), *kafka_problems(content)]
    try:
        config = PipelineConfig.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = sorted({_problem(detail) for detail in _without_alternatives(error.errors())})
        # from None: the cause repeats what the file has, maybe a secret in the wrong place
        raise InvalidPipeline(path, beforehand + problems) from None
    if beforehand:
        raise InvalidPipeline(path, beforehand)
    return config


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
    "union_tag_not_found": "must have a 'name', that of its transformer",
}


_LIMITS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("ge", "must be at least"),
    "less_than_equal": ("le", "must be at most"),
}


def _problem(detail: ErrorDetails) -> str:
    """`path: what it must be`."""
    kind, context = detail["type"], detail.get("ctx", {})
    # A union names its members in the path; only keys and positions are the file's.
    rules = [s for s in detail["loc"] if not _is_rule(s)]
    steps = [s for s in rules if not re.search(r"\[.*\]", str(s))]
    steps = [s for s in steps if s not in ("constrained-str", "tuple")]
    path = _path(steps)
    if kind == "extra_forbidden":
        return f"{path}: unknown key{_did_you_mean(steps, _transformer_in(detail['loc']))}"
    if kind == "union_tag_invalid":
        return f"{path}.name: {_unknown_transformer(context['tag'])}"
    if kind in _LIMITS:
        limit, meaning = _LIMITS[kind]
        return f"{path}: {meaning} {context[limit]:,}"
    if kind == "literal_error" and len(steps) == len(rules):  # no part of a union
        return f"{path}: must be {context['expected']}"
    if kind == "value_error":
        return f"{path}: {context['error']}"
    return f"{path}: {_MEANINGS.get(kind, detail['msg'])}"


def _without_alternatives(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Of a value that was meant as a list, only what is wrong with the list."""
    choice = ("literal_error", "tuple_type")
    tagged = [d for d in details if any("[" in str(s) for s in d["loc"][2:])]
    inside = {d["loc"][:2] for d in tagged if d["type"] not in choice}
    places = [d["loc"] for d in details]
    return [
        detail
        for detail in details
        if (detail["loc"][:2] not in inside or detail["type"] not in choice)
        # entries that are wrong are not counted: the list only looks too short
        and (detail["type"] != "too_short" or not _is_inside(detail["loc"], places))
    ]


def _is_inside(place: tuple[int | str, ...], places: Sequence[tuple[int | str, ...]]) -> bool:
    """Whether another problem lies inside of a place."""
    return any(other != place and other[: len(place)] == place for other in places)


def _is_rule(step: int | str) -> bool:
    """Whether a step names the transformer of a rule, as `<email>`, and no key."""
    return isinstance(step, str) and bool(re.fullmatch(r"<.*>", step))


def _transformer_in(steps: Sequence[int | str]) -> type[Section] | None:
    """The transformer whose rule a problem is in."""
    names = [str(step).strip("<>") for step in steps if _is_rule(step)]
    return next((BY_NAME[name] for name in names if name in BY_NAME), None)


def _unknown_transformer(tag: str) -> str:
    name = tag.strip("<>")
    close = difflib.get_close_matches(name, BY_NAME, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(BY_NAME)}"
    return f"no transformer {name!r}{meant}"


def _path(steps: Sequence[int | str]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"


def _did_you_mean(steps: Sequence[int | str], transformer: type[Section] | None) -> str:
    section: type[BaseModel] | None = transformer or PipelineConfig
    remaining = [] if transformer else [str(step) for step in steps[:-1]]
    while remaining and section is not None:
        field = field_of(section, key := remaining.pop(0))
        if field is None:
            section = settings_of(key) if section is SinkConfig else None
        else:
            section = section_of(field)
        if field is not None and get_origin(field.annotation) is dict and remaining:
            remaining.pop(0)  # the name of one of several
    names = [] if section is None else [f.alias or n for n, f in section.model_fields.items()]
    close = difflib.get_close_matches(str(steps[-1]), names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if names else ""


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
