"""What an installation without extras brings."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement


def required(package: str, extra: str = "") -> set[str]:
    """The names of what a package requires; with an extra."""
    requirements = [Requirement(line) for line in metadata.requires(package) or []]
    return {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})}


def test_pyspark_has_what_it_asks_for_to_exchange_arrow() -> None:
    asked_for = required("pyspark", "sql") - required("pyspark")
    assert asked_for == {"numpy", "pandas", "pyarrow"}
    assert required("pgstream-dagster") >= asked_for
