"""
Play the scenarios: `python -m tests.faults`, or some of them by name.

Exit code 1: one failed; what it printed says how to repeat it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pgstream_dagster.embedded.opensearch import OpenSearch
from tests.faults.scenarios import SCENARIOS, Needs, Scenario
from tests.faults.site import Site, small_disk

DISK_MEGABYTES = 96

MANY_CHANGES = 40_000
"""In one log: to compare them takes longer than to make another site."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Each scenario in turn; those that share a site one after the other on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of scenarios; all without any")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--major", type=int, default=15)
    given = parser.parse_args(arguments)
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := set(given.names) - by_name.keys():
        parser.error(f"no such scenario: {', '.join(unknown)}")
    chosen = [s for s in by_name.values() if s.name in given.names] or [*SCENARIOS]
    folder = Path(tempfile.mkdtemp(prefix="pgstream-faults-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else our processes would stay
    run = Run(folder, given.seed, given.major)
    began = time.monotonic()
    for needs in Needs:
        run.group(needs, [s for s in chosen if s.needs is needs])
    seconds = time.monotonic() - began
    print(f"{len(chosen) - len(run.failed)} of {len(chosen)} as expected in {seconds:.0f} s")
    if run.failed:
        print(f"failed: {', '.join(run.failed)}; logs are in {folder}")
    return bool(run.failed)


class Run:
    """The scenarios of one call."""

    def __init__(self, folder: Path, seed: int, major: int) -> None:
        self._folder, self._seed, self._major = folder, seed, major
        self.failed: list[str] = []

    def group(self, needs: Needs, scenarios: Sequence[Scenario]) -> None:
        """Those that share a site, until one fails or the log is long: the next gets another."""
        left = list(scenarios)
        while left:
            with ExitStack() as stack:
                try:
                    site = stack.enter_context(self._site(needs, left[0].name))
                except PermissionError as error:
                    print(f"skipped {', '.join(s.name for s in left)}: {error}", flush=True)
                    return
                while left and self._play(left.pop(0), site) and needs is not Needs.OWN:
                    pass

    @contextmanager
    def _site(self, needs: Needs, name: str) -> Iterator[Site]:
        folder = self._folder / name
        with ExitStack() as stack:
            options = {}
            if needs is Needs.DISKS:
                for disk in ("lake", "state"):
                    options[disk] = stack.enter_context(small_disk(folder / disk, DISK_MEGABYTES))
            if needs is Needs.SEARCH:
                options["node"] = stack.enter_context(OpenSearch("3"))
            site = stack.enter_context(Site(folder, seed=self._seed, major=self._major, **options))
            site.start_stream()
            if needs is Needs.SEARCH:
                site.pgstream("index", "run")
                site.compare_index()
            yield site

    def _play(self, scenario: Scenario, site: Site) -> bool:
        """Play it and compare; whether the site is fit for another."""
        began, changes = time.monotonic(), 0
        try:
            scenario.play(site)
            if scenario.keeps_slot:
                changes = site.compare()
            else:
                site.compare_rows()
            if scenario.needs is Needs.SEARCH:
                site.compare_index()
        except Exception:  # noqa: BLE001 - the others are played, too
            self.failed.append(scenario.name)
            print(
                f"FAILED {scenario.name}: {scenario.done}\nexpected: {scenario.expected}\n"
                f"{traceback.format_exc()}\nthe stream printed:\n{site.output()}\nrepeat it: make"
                f" faults ARGS='{scenario.name} --seed {self._seed} --major {self._major}'",
                flush=True,
            )
            return False
        seconds = time.monotonic() - began
        compared = f"{changes} changes compared" if changes else "rows compared"
        print(f"ok {scenario.name}, {seconds:.0f} s, {compared}", flush=True)
        return changes < MANY_CHANGES


if __name__ == "__main__":
    sys.exit(main())
