"""
What the pipeline file says of a record: its topic and key, and the headers of functions of yours.

A function is named as `package.module:function`, gets a `Change`, and should give the same for the
same change. What it raises, or gives of a wrong type, is `HookFailed`: of that change alone.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pgstream_dagster.config.kafka import KafkaConfig, is_function
from pgstream_dagster.readers.change import Change, of_versions
from pgstream_dagster.sinks.base import Refused
from pgstream_dagster.sinks.kafka.keys import STRATEGIES
from pgstream_dagster.sinks.kafka.topics import MAX_TOPIC, topic
from pgstream_dagster.sinks.message import Message, of_event

Function: TypeAlias = Callable[[Change], "bytes | None"]

IDENTITY: Final = "pgstream.identity"
VERSION: Final = "pgstream.version"

_TOPIC: Final = re.compile(rf"(?!\.{{1,2}}$)[A-Za-z0-9._-]{{1,{MAX_TOPIC}}}")


class HookFailed(Exception):
    """A function of the pipeline file gave nothing that a record can have."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """
    Topic, key and further headers of records.

    `is_by_relation`: whether all changes of a relation have one topic. `has_functions`: whether
    code of the user's sees each change. `events`: changes are events of the outbox, with these
    places.
    """

    topic: Callable[[Change], str]
    key: Function
    headers: Sequence[tuple[str, Function]] = ()
    is_by_relation: bool = True
    has_functions: bool = False
    events: EventPlaces | None = None

    def topics(self, changes: Sequence[Change]) -> set[str]:
        """The topics of changes, but of those without one."""
        of_each: Iterable[Change] = changes
        if self.is_by_relation:
            of_each = {(c.namespace, c.relation): c for c in of_versions(changes)}.values()
        topics: set[str] = set()
        for change in of_each:
            with contextlib.suppress(HookFailed):
                topics.add(self.topic(change))
        return topics


def hooks_of(config: KafkaConfig, pipeline: str) -> Hooks:
    """
    What a sink is configured with.

    Raises:
        ValueError: a function cannot be loaded.
    """
    named = ((IDENTITY, config.identity), (VERSION, config.version))
    headers = [(header, function(name)) for header, name in named if name is not None]
    key = STRATEGIES.get(config.key) or function(config.key)
    has_functions = bool(headers) or config.key not in STRATEGIES
    if is_function(config.topic):
        return Hooks(
            _topic_function(config.topic), key, headers, is_by_relation=False, has_functions=True
        )
    template = config.topic
    return Hooks(
        lambda c: topic(template, pipeline, c.namespace, c.relation),
        *(key, headers),
        has_functions=has_functions,
    )


@dataclass(frozen=True, slots=True)
class EventPlaces:
    """
    Topic and key of events of the outbox: those of the metadata, else the default and the group.

    `setting` is the key of the pipeline file for the default. `refused` has why nothing can be sent
    to a topic that only metadata names; it may grow. `own` are those that the sink itself keeps.
    """

    default_topic: str | None
    setting: str
    refused: Mapping[str, str]
    own: Container[str] = ()

    def topic(self, message: Message) -> str:
        """The topic of an event; raises `HookFailed`."""
        name = message.place("topic", self.default_topic, self.setting)
        if isinstance(name, Refused):
            raise HookFailed(name.reason)
        if not _TOPIC.fullmatch(name):
            raise HookFailed(f"its topic {name!r} is no name: letters, digits, '.', '_' and '-'")
        if name in self.own or name.startswith("__"):
            raise HookFailed(f"its topic {name!r} is not one for events")
        if (reason := self.refused.get(name)) is not None:
            raise HookFailed(f"its topic {name!r} {reason}")
        return name

    def key(self, message: Message) -> bytes:
        """The key of an event."""
        group = message.id if message.group is None else message.group
        given = (message.route.get(name) for name in ("key", "partition_key"))
        return str(next((key for key in given if key is not None), group)).encode()


def hooks_of_events(places: EventPlaces) -> Hooks:
    """Those of events of the outbox."""
    return Hooks(
        lambda change: places.topic(event_message(change)),
        lambda change: places.key(event_message(change)),
        is_by_relation=False,
        has_functions=True,
        events=places,
    )


def event_message(change: Change) -> Message:
    """The message of an event; raises `HookFailed`."""
    message = of_event(change)
    if isinstance(message, Refused):
        raise HookFailed(message.reason)
    return message


def function(name: str) -> Function:
    """The function of this name; its text as UTF-8. Raises `ValueError` if it cannot be loaded."""
    call = _call(name)

    def result(change: Change) -> bytes | None:
        value = call(change)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        raise HookFailed(f"{name} gave {type(value).__name__}, not bytes, str or None")

    return result


def _topic_function(name: str) -> Callable[[Change], str]:
    call = _call(name)

    def result(change: Change) -> str:
        value = call(change)
        if isinstance(value, str) and _TOPIC.fullmatch(value):
            return value
        raise HookFailed(f"{name} gave no name of a topic: letters, digits, '.', '_' and '-'")

    return result


def _call(name: str) -> Callable[[Change], Any]:
    module, _, attribute = name.partition(":")
    try:
        called: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module's code raises
        raise ValueError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(called):
        raise ValueError(f"{name!r} cannot be loaded: it is no function")  # noqa: TRY004

    def call(change: Change) -> Any:
        try:
            return called(change)
        except Exception as error:
            # Not its text, which may have values of the row.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            raise HookFailed(f"{name} raised {type(error).__name__} in {place}") from error

    return call
