"""Positions as Dagster shows them. Pure."""

from __future__ import annotations

from pgstream_dagster.lsn import Lsn


def position(name: str, at: Lsn) -> dict[str, str | int]:
    """The metadata of a position: as text for people, and as a number for plots."""
    return {name: str(at), f"{name}_lsn": int(at)}
