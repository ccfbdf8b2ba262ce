"""
Named errors for causes outside an operation: the JVM, the process' descriptors, the lake.

A failed write is an `OSError` here or an exception in the JVM, whose text depends on the writer,
and the lake's disk is not the only one. So a write to the lake's own folder is tried.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from pgstream_dagster.delta import jvm, uri
from pgstream_dagster.errors import (
    BuildFailed,
    CommitFailed,
    CopyFailed,
    DescriptorsExhausted,
    FilesAway,
    JvmEnded,
    LakeAway,
    LakeFull,
    LakeRefused,
    PgstreamError,
    TableMissing,
)

PROBE: Final = ".pgstream-probe"
PROBE_BYTES: Final = 1 << 16
"""A file system that is full may still have room for a name."""

LOST: Final = (Py4JError, ConnectionError, EOFError)
"""Raised by a call when the JVM ends meanwhile; its sockets close before its process has ended."""

UNNAMED: Final = (*LOST, OSError, pa.ArrowException, PySparkException)
NAMED_BY_SYMPTOM: Final = (CommitFailed, CopyFailed, BuildFailed, FilesAway, TableMissing)

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_AWAY: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO, errno.ENOTCONN})


@contextmanager
def named(table: str) -> Generator[None]:
    """
    Raise a named error for what ended the block, which uses this process' JVM and this table.

    Raises:
        JvmEnded, DescriptorsExhausted
        LakeFull, LakeRefused, LakeAway, CommitFailed: nothing is lost; try again later.
    """
    try:
        yield
    except (*UNNAMED, *NAMED_BY_SYMPTOM) as error:
        name = _process(error) or _lake(table, error)
        if name is None:
            raise
        raise name from error


def _process(error: Exception) -> PgstreamError | None:
    is_lost = isinstance(error, LOST) and not isinstance(error, Py4JJavaError)
    code = jvm.exit_code(jvm.END_SECONDS if is_lost else 0.0)
    if code is None and is_lost:  # another thread may have started the next one
        code = jvm.replaced
    if code is not None:
        return JvmEnded(code)
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return DescriptorsExhausted(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return None


def _lake(table: str, error: Exception) -> PgstreamError | None:
    folder = uri.local(table)
    number = None if folder is None else _probe(folder)
    if number in _FULL:
        return LakeFull(str(folder))
    if number in _REFUSED:
        return LakeRefused(str(folder), os.strerror(number or 0))
    if number in _AWAY:
        return LakeAway(str(folder))
    # The lake could not be written a moment ago.
    if isinstance(error, OSError) and error.errno in _FULL | _REFUSED | _AWAY:
        return CommitFailed(table, os.strerror(error.errno))
    if isinstance(error, Py4JJavaError) and _is_io(error.java_exception):
        return CommitFailed(table, str(error.java_exception))
    return None


def _is_io(thrown: jvm.Java) -> bool:
    while thrown is not None:
        if is_instance_of(jvm.gateway(), thrown, "java.io.IOException"):
            return True
        thrown = thrown.getCause()
    return False


def _probe(folder: Path) -> int | None:
    """The error number of writing a small file in the folder; `None` when it can be written."""
    file = folder / f"{PROBE}-{secrets.token_hex(4)}"
    try:
        with file.open("wb", buffering=0) as probe:
            written = probe.write(bytes(PROBE_BYTES))
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno
    finally:
        with suppress(OSError):  # a folder that cannot be written has no such file
            file.unlink(missing_ok=True)
    return None if written == PROBE_BYTES else errno.ENOSPC
