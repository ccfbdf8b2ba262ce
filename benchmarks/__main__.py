"""`python -m benchmarks`: run what is asked for, print a table, write JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks import kafka, latency, outbox, postgres_sink, search, tables, webhooks
from benchmarks.measure import Measured, load
from benchmarks.versions import SIDES

GOALS = {
    "inserts": 1.05,
    "mixed": 1.2,
    "copy": 0.4,
    "reindex": 1.1,
    "kafka": 0.3,
    "webhooks": 0.9,
    "replica_inserts": 0.35,
    "replica_mixed": 0.2,
    "replica_copy": 0.35,
}
ALL = [
    *("inserts", "mixed", "copy", "latency", "reindex", "searchable"),
    *("kafka", "consumed", "events", "webhooks"),
    *("replica_inserts", "replica_mixed", "replica_copy"),
    "outbox",
    "tables",
]
FLOORS = {
    "inserts": "pg_recvlogical to nowhere",
    "mixed": "pg_recvlogical to nowhere",
    "copy": "two-connection binary COPY to nowhere",
    "reindex": "parallel_bulk of the same documents",
    "kafka": "librdkafka with the same records, ready in memory",
    "webhooks": "httpx posting the same bodies",
    "replica_inserts": "COPY of the same rows",
    "replica_mixed": "COPY of as many rows",
    "replica_copy": "COPY of the same rows",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("what", nargs="*", default=ALL)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="per latency rate")
    parser.add_argument("--major", type=int, default=15)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results.json"))
    given = parser.parse_args()
    sides = {**SIDES, "webhooks": webhooks.deliveries}
    sides["replica_inserts"] = postgres_sink.inserts
    sides["replica_mixed"] = postgres_sink.mixes
    sides["replica_copy"] = postgres_sink.copies
    results: dict[str, object] = {"postgres": given.major, "rows": given.rows}
    for what in given.what:
        if what == "latency":
            results[what] = list(_latency(given.major, given.seconds))
        elif what == "searchable":
            results[what] = _searchable(given.major, given.seconds)
        elif what == "outbox":
            results[what] = outbox.costs(given.major, min(given.rows, outbox.BULK_ROWS))
        elif what == "tables":
            results[what] = tables.costs(given.major, given.rows, given.rounds)
        elif what == "consumed":
            results[what] = _consumed(given.major, given.seconds)
        elif what == "events":
            results[what] = _events(given.major, given.seconds)
        else:
            results[what] = _compare(what, sides[what](given.major, given.rows, given.rounds))
    given.json.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {given.json}", file=sys.stderr)


def _compare(what: str, rounds: Iterator[tuple[Measured, Measured]]) -> dict[str, object]:
    print(f"\n{what}: ours against {FLOORS[what]}")
    print(f"{'round':>5} {'load':>5} {'ours rows/s':>12} {'us/row':>7} {'floor rows/s':>13} ratio")
    ratios, cpus, shown = [], [], []
    for number, (ours, floor) in enumerate(rounds, 1):
        ratio = ours.rows_per_second / floor.rows_per_second
        ratios.append(ratio)
        cpus.append(ours.cpu_us_per_row)
        print(
            f"{number:>5} {load():>5.1f} {ours.rows_per_second:>12,.0f} {ours.cpu_us_per_row:>7.1f}"
            f" {floor.rows_per_second:>13,.0f} {ratio:.2f}",
            flush=True,
        )
        shown.append({"ours": asdict(ours), "floor": asdict(floor), "ratio": ratio, "load": load()})
    middle, cpu = statistics.median(ratios), statistics.median(cpus)
    print(f"median {middle:.2f} (goal {GOALS[what]}), {cpu:.1f} us CPU a row (Python and JVM)")
    return {"median_ratio": middle, "median_cpu_us_per_row": cpu, "rounds": shown}


def _latency(major: int, seconds: float) -> Iterator[dict[str, object]]:
    print("\nlatency: commit to row in a reader's hand (goal p50 0.4 s, p99 1 s)")
    for at in latency.latencies(major, (200, 5_000), seconds):
        print(
            f"{at.rows_per_second:>6,} rows/s: p50 {at.p50:.3f} s, p99 {at.p99:.3f} s"
            f" ({at.sent:,} commits, load {load():.1f})",
            flush=True,
        )
        yield asdict(at)


def _searchable(major: int, seconds: float) -> dict[str, object]:
    print("\nsearchable: commit to a get by id that finds it (goal p50 0.5 s, p99 1.2 s)")
    at = search.searchable(major, 200, seconds)
    return _shown(at)


def _consumed(major: int, seconds: float) -> dict[str, object]:
    print("\nconsumed: commit to a Kafka consumer that has it (goal p50 0.4 s, p99 0.9 s)")
    at = kafka.latency(major, 200, seconds)
    return _shown(at)


def _events(major: int, seconds: float) -> dict[str, object]:
    print("\nevents: commit to a Kafka consumer that has the event of the row (goal p50 0.4 s)")
    return _shown(kafka.event_latency(major, 200, seconds))


def _shown(at: latency.Latency) -> dict[str, object]:
    print(
        f"   200 commits/s: p50 {at.p50:.3f} s, p99 {at.p99:.3f} s ({at.sent:,}, load {load():.1f})"
    )
    return asdict(at)


main()
