"""The wheel holds the whole package, and works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pgstream_dagster"

USE = """
import importlib, pathlib, pkgutil, sys
import pgstream_dagster
assert pathlib.Path(pgstream_dagster.__file__).is_relative_to(sys.argv[1])
for module in pkgutil.walk_packages(pgstream_dagster.__path__, "pgstream_dagster."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from pgstream_dagster.runtime.jars import locked
assert "spark" in locked()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by way of the sdist, as a release is."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "uv", "build", "--no-build-isolation", "--quiet"]
    command += ["--python", sys.executable, "--out-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == tracked


def test_wheel_imports_and_finds_its_data_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
        "PYTHONPATH": str(tmp_path / "site"),
        "DAGSTER_HOME": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "site")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
