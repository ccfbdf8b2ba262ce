"""
An operation whose JVM is killed under it, then the same again in the same process.

Prints `outcome: ` and the name of the error that each attempt ended with, or `ended`.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgstream_dagster.capture import stream
from pgstream_dagster.changelog import optimize as changelog
from pgstream_dagster.config import IndexConfig
from pgstream_dagster.copy import copying, scan
from pgstream_dagster.copy.snapshot import snapshot
from pgstream_dagster.delta import jvm
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.index import Indexed, index
from pgstream_dagster.upkeep.optimize import optimize
from pgstream_dagster.upkeep.resnapshot import resnapshot
from tests.support.harness import runner, search_pipelines


def kill() -> None:
    process = jvm.gateway().proc  # pyright: ignore[reportAttributeAccessIssue]
    process.kill()
    process.wait()


def once_before(owner: object, name: str, act: Callable[[], None]) -> None:
    """Act before the first call of a function."""
    plain, done = getattr(owner, name), list[None]()

    def replaced(*given: Any, **named: Any) -> Any:
        if not done:
            done.append(None)
            act()
        return plain(*given, **named)

    setattr(owner, name, replaced)


def follow(pipeline: Pipeline, target: Lsn) -> None:
    """Index until `target` is delivered, and kill the JVM at the first report."""
    stop, reports = threading.Event(), list[Indexed]()

    def report(indexed: Indexed) -> None:
        reports.append(indexed)
        if len(reports) == 1:
            kill()
        elif min(indexed.delivered.values(), default=Lsn(0)) >= target:
            stop.set()

    index(pipeline, stop=stop, report=report)


def exhaust() -> None:
    """Leave no descriptor free."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))


taken: list[int] = []


def free() -> None:
    while taken:
        os.close(taken.pop())


def main() -> None:
    _, operation, dsn, folder, *more = sys.argv
    pipeline = runner.new_pipeline(dsn, Path(folder))
    operations: dict[str, Callable[[], object]] = {
        "snapshot": lambda: snapshot(pipeline, ["public.t"]),
        "resnapshot": lambda: resnapshot(pipeline),
        "optimize": lambda: optimize(pipeline),
        "stream": lambda: stream.stream(
            pipeline, stop=threading.Event(), until=runner.flushed(pipeline.dsn)
        ),
        "descriptors": lambda: optimize(pipeline),
    }
    match operation:
        case "snapshot" | "resnapshot":
            once_before(copying.scan, "run", kill)
        case "snapshot on Spark":
            scan.copy_plan.TASK_PAGES = 2  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
            once_before(scan, "_result", kill)
        case "optimize":
            once_before(changelog, "optimize", kill)
        case "stream":
            once_before(stream, "_landing", kill)
        case "descriptors":
            once_before(changelog, "optimize", exhaust)
        case _:
            url, alias, target = more
            pipeline = search_pipelines.with_search(
                pipeline, url, **{alias: IndexConfig(table="public.item")}
            )
            follow(pipeline, Lsn.parse(target))
            sys.stdout.write("outcome: ended\n")
            return
    for _ in range(2):
        try:
            operations[operation.removesuffix(" on Spark")]()
            outcome = "ended"
        except Exception as error:  # noqa: BLE001 - the test compares its name
            outcome = type(error).__name__
        free()
        sys.stdout.write(f"outcome: {outcome}\n")


if __name__ == "__main__":
    main()
