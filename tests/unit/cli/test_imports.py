"""A command that only reads its configuration is fast: it imports no heavy package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "dagster", "opensearchpy"}

RUN = """
import sys
from pgstream_dagster.cli.run import run
code = run(sys.argv[1:])
print(code, *sorted(name for name in sys.modules if "." not in name))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["setup"], 2),
        (["check"], 2),
        (["index", "run"], 2),
        (["reindex", "orders"], 2),
    ],
)
def test_help_and_a_configuration_error_import_nothing_heavy(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )
    ended, *imported = done.stdout.splitlines()[-1].split()
    assert int(ended) == code, done.stderr
    assert HEAVY.isdisjoint(imported)


def test_every_summary_of_the_help_is_whole_and_in_the_order_of_use() -> None:
    from click.testing import CliRunner

    from pgstream_dagster.cli.commands import pgstream

    shown = CliRunner().invoke(pgstream, ["--help"], terminal_width=80).output
    listed = shown.partition("Commands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")]
    names = [line.split()[0] for line in listed]
    assert names[:5] == ["grants", "check", "setup", "stream", "status"]
    assert names[-2:] == ["demo", "dev"]
