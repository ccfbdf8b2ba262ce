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
    ended, imported = run(tmp_path, arguments)
    assert ended == code
    assert HEAVY.isdisjoint(imported)


def test_a_check_imports_no_engine(tmp_path: Path) -> None:
    (tmp_path / "pgstream.yaml").write_text("pipeline: shop\n")
    _, imported = run(tmp_path, ["check"], PGSTREAM_DSN="host=127.0.0.1 port=1 dbname=shop")
    assert "psycopg" in imported
    assert {"pyspark", "py4j", "pandas", "dagster"}.isdisjoint(imported)


def run(folder: Path, arguments: list[str], **environment: str) -> tuple[int, list[str]]:
    """A command in a process of its own: its exit code, and the packages that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    ended, *imported = done.stdout.splitlines()[-1].split()
    return int(ended), imported


def test_every_summary_of_the_help_is_whole_and_in_the_order_of_use() -> None:
    from click.testing import CliRunner

    from pgstream_dagster.cli.commands import pgstream

    shown = CliRunner().invoke(pgstream, ["--help"], terminal_width=80).output
    listed = shown.partition("Commands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")]
    names = [line.split()[0] for line in listed]
    assert names[:5] == ["grants", "check", "setup", "stream", "status"]
    assert names[-2:] == ["demo", "dev"]
