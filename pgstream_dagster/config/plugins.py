"""
Sinks that other packages offer: entry points of the group `pgstream.sinks`, by their names.

A package is imported only if the pipeline file names its sink.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pydantic import BaseModel

GROUP: Final = "pgstream.sinks"
"""The group of entry points; each names a class, or what makes a sink, with its `Settings`."""

_KIND: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
"""What Dagster shows as the kind of an asset."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A key of a sink that is none of ours, and what the file has under it."""

    kind: str
    settings: object


@dataclass(frozen=True, slots=True)
class Installed:
    """A sink of another package, with its settings from the file."""

    kind: str
    package: str
    make: Callable[[BaseModel, Any], Any]
    settings: BaseModel


def installed_kinds() -> list[str]:
    """The names of the sinks that installed packages offer; imports none of them."""
    return sorted(entry_points(group=GROUP).names)


def read(value: object, own_keys: Sequence[str], own_kinds: Sequence[str]) -> Installed:
    """
    The settings of an installed sink.

    Raises:
        ValidationError: the settings are wrong.
        ValueError: no package offers the sink, several do, or its package cannot be used.
    """
    assert isinstance(value, Unread)
    points = list(entry_points(group=GROUP, name=value.kind))
    if not points:
        raise ValueError(_unknown(value.kind, own_keys, own_kinds))
    packages = [_package(point) for point in points]
    if len(points) > 1:
        listed = " and ".join(sorted(packages))
        raise ValueError(f"the packages {listed} both offer a sink of this name; remove one")
    make, settings = _loaded(points[0], packages[0])
    return Installed(value.kind, packages[0], make, settings.model_validate(value.settings))


def settings_of(kind: str) -> type[BaseModel] | None:
    """The settings of an installed sink whose package can be imported."""
    try:
        [point] = entry_points(group=GROUP, name=kind)
        return _loaded(point, _package(point))[1]
    except ValueError:
        return None


def _loaded(point: EntryPoint, package: str) -> tuple[Callable[..., Any], type[BaseModel]]:
    if not _KIND.fullmatch(point.name):
        raise ValueError(
            f"package {package} gives its sink a name that has more than letters, digits, '_', '.'"
            " and '-', or is longer than 63 characters; rename it there"
        )
    try:
        make: Any = point.load()
    except Exception as error:  # whatever the package's code raises
        raise ValueError(
            f"package {package} cannot be imported: {type(error).__name__}: {error}; install what"
            f" it needs, or another version of it ({point.value})"
        ) from error
    settings: Any = getattr(make, "Settings", None)
    if not callable(make) or not isinstance(settings, type) or not issubclass(settings, BaseModel):
        raise ValueError(  # noqa: TRY004 - a problem of the file, for pydantic
            f"package {package} offers {point.value}, which is no sink: it must be a class, or a"
            " function, with a pydantic model as its attribute 'Settings'"
        )
    return make, settings


def _package(point: EntryPoint) -> str:
    return "?" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _unknown(key: str, own_keys: Sequence[str], own_kinds: Sequence[str]) -> str:
    others = installed_kinds()
    close = difflib.get_close_matches(key, [*own_keys, *others], n=1)
    if close:
        return f"unknown key; did you mean {close[0]!r}?"
    listed = ", ".join(others) or "none"
    return (
        f"unknown key; targets are {', '.join(own_kinds)}, and of installed packages {listed};"
        f" other keys are {', '.join(name for name in own_keys if name not in own_kinds)}"
    )
