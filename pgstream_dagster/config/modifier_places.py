"""
Where the pipeline file names modifiers: what is wrong with that, before the file is parsed.

Of the file as it is written, so that other problems do not hide these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pgstream_dagster.config.transformers import is_repeatable
from pgstream_dagster.config.written import items_of, keys_of


def modifier_problems(content: dict[str, Any]) -> list[str]:
    """Modifiers that are not there, and those that do not suit the place that names them."""
    modifiers, search = keys_of(content.get("modifiers")), keys_of(content.get("search"))
    problems: list[str] = []
    for alias, index in search.items():
        path = f"search.{alias}.modifiers"
        names = items_of(keys_of(index).get("modifiers"))
        problems += [*_unknown(path, names, modifiers), *_unrepeatable(path, names, modifiers)]
    for sink, config in keys_of(content.get("sinks")).items():
        names = items_of(keys_of(config).get("modifiers"))
        problems += _unknown(f"sinks.{sink}.modifiers", names, modifiers)
    return [*_of_source(content, modifiers), *problems]


def _of_source(content: dict[str, Any], modifiers: dict[str, Any]) -> Iterator[str]:
    path, names = "source.modifiers", items_of(keys_of(content.get("source")).get("modifiers"))
    yield from _unknown(path, names, modifiers)
    yield from _unrepeatable(path, names, modifiers)
    for name in names:
        modifier = keys_of(modifiers.get(name)) if isinstance(name, str) else {}
        if modifier.get("on_error") == "pass-through":
            yield (
                f"{path}: modifier {name!r} has on_error 'pass-through', which would store values"
                " as they are; use 'fail' or 'null'"
            )
    if names and keys_of(content.get("capture")).get("messages") is True:
        yield (
            "capture.messages: must be false with source.modifiers: a logical message can hold any"
            " text, and no rule covers it"
        )


def _unknown(path: str, names: list[Any], modifiers: dict[str, Any]) -> Iterator[str]:
    listed = ", ".join(map(str, modifiers)) or "none"
    for name in names:
        if isinstance(name, str) and name not in modifiers:
            yield f"{path}: no modifier {name!r} under 'modifiers'; there are {listed}"


def _unrepeatable(path: str, names: list[Any], modifiers: dict[str, Any]) -> Iterator[str]:
    """Rules that give another result each time; what is read again must become the same."""
    for name in names:
        for place, rule in _rules(keys_of(modifiers.get(name)) if isinstance(name, str) else {}):
            function = rule.get("anon_function")
            if isinstance(function, str) and not is_repeatable(function):
                yield (
                    f"{path}: modifier {name!r} has {function} for {place}, which gives another"
                    " result each time; only sinks may name it"
                )


def _rules(modifier: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each rule of a modifier, with its table and column."""
    for table, columns in keys_of(modifier.get("transform")).items():
        for column, rule in keys_of(columns).items():
            yield f"{table}.{column}", keys_of(rule)
