"""
The owner of a state folder, and whether its stream runs.

The owner is in a small file per pipeline name, the address of its lake. Two pipelines may have the
same name. If they shared a folder, one would read the other's heartbeats as its own. The file costs
nothing to lose: the next start writes it again.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pgstream_dagster import heartbeat
from pgstream_dagster.delta import uri
from pgstream_dagster.errors import StateTaken, StreamRunning
from pgstream_dagster.pipeline import Pipeline

logger = logging.getLogger(__name__)


def claim(pipeline: Pipeline) -> None:
    """
    Make the state folder this pipeline's; no-op if it is already.

    Raises:
        StateTaken: it belongs to a pipeline of the same name with another lake.
    """
    require_own(pipeline)
    path = _path(pipeline)
    draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(_lake(pipeline), encoding="utf-8")
        try:
            os.link(draft, path)  # fails if another process was faster
        except FileExistsError:
            if not _owner(path):  # torn by a crash of the machine
                draft.replace(path)
    except OSError as error:  # capture does not depend on this folder
        logger.warning("state folder %s cannot be claimed: %s", path.parent, error.strerror)
    finally:
        with suppress(OSError):
            draft.unlink()
    require_own(pipeline)


def require_own(pipeline: Pipeline) -> None:
    """
    Check that the state folder is this pipeline's, or is unclaimed; writes nothing.

    Raises:
        StateTaken: it belongs to a pipeline of the same name with another lake.
    """
    path = _path(pipeline)
    lake = _owner(path)
    if lake and lake != _lake(pipeline):
        raise StateTaken(str(path), pipeline.name, lake, _lake(pipeline))


def require_no_stream(pipeline: Pipeline) -> None:
    """
    Raise while a stream of the pipeline runs with this state folder, connected or not.

    Raises:
        StateTaken: as `require_own`.
        StreamRunning
    """
    require_own(pipeline)
    last = heartbeat.read(pipeline.heartbeat_file)
    if last is not None and last.may_run:
        limit = heartbeat.SILENT_SECONDS if last.is_elsewhere else None
        raise StreamRunning(pipeline.name, last.pid, last.host, limit)


def _owner(path: Path) -> str:
    """The lake in an owner file; empty if there is none, or it is torn (a crash leaves NULs)."""
    try:
        return path.read_text(encoding="utf-8").strip("\0")
    except (OSError, UnicodeDecodeError):
        return ""


def _path(pipeline: Pipeline) -> Path:
    return pipeline.state / f"{pipeline.name}.owner"


def _lake(pipeline: Pipeline) -> str:
    return uri.absolute(pipeline.lake.root)
