"""
The wheel holds the whole package, and works away from the checkout: by itself, and in a project.

The project, `tests/support/host_project`, has an asset of its own, merges two pipelines under
prefixes with it, overrides their source, and has a third one as a component.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.plugins.cluster import psql, unavailable

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

READ = """
import dagster
from host_project.definitions import defs
with dagster.DagsterInstance.ephemeral() as instance:
    project = defs()
    project.resolve_job_def("shop_setup").execute_in_process(instance=instance)
    every = project.resolve_implicit_global_asset_job_def()
    count = dagster.AssetKey("order_count")
    done = every.execute_in_process(instance=instance, asset_selection=[count])
    [counted] = done.asset_materializations_for_node("order_count")
    print(counted.metadata["dagster/row_count"].value)
"""

SECONDS = 300  # Dagster and a JVM start in 20 s, and in minutes on a busy machine


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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone; what it depends on is that of the tests."""
    site = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(site), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def run(
    folder: Path, *command: str | Path, path: tuple[Path, ...], **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command of a user in a folder of theirs, without anything of the checkout."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        command,
        cwd=folder,
        env={
            **others,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "DAGSTER_HOME": str(folder),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == tracked


@pytest.mark.long
def test_wheel_imports_and_finds_its_data_outside_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    ran = run(tmp_path, sys.executable, "-c", USE, str(installed), path=(installed,))
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project, in a folder of its own."""
    return shutil.copytree(ROOT / "tests" / "support" / "host_project", tmp_path / "host_project")


@pytest.mark.long
def test_project_with_merged_pipelines_and_a_component_passes_the_check_of_dg(
    installed: Path, project: Path
) -> None:
    if importlib.util.find_spec("dagster_dg_cli") is None:
        unavailable("dg", ["dagster-dg-cli is not installed: make setup"])

    def dg(*arguments: str) -> str:
        command = Path(sys.executable).with_name("dg")
        ran = run(project, command, *arguments, path=(installed, project))
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    assert "All definitions loaded successfully" in dg("check", "defs")
    assets = {
        asset["asset_key"]: asset for asset in json.loads(dg("list", "defs", "--json"))["assets"]
    }
    assert {"order_count", "shop/change_log", "crm/change_log", "billing/change_log"} <= set(assets)
    assert assets["order_count"]["dependency_keys"] == ["shop/change_log"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.one_major("newest")
def test_asset_of_the_project_reads_rows_of_the_source_that_it_has_overridden(
    installed: Path, project: Path, dsn: str
) -> None:
    psql(dsn, "create table orders (id int primary key)", "insert into orders values (1), (2)")
    ran = run(
        project,
        *(sys.executable, "-c", READ),
        path=(installed, project),
        VAULT_SHOP=dsn,
        PGSTREAM_LAKE=str(project / "lake"),
        PGSTREAM_STATE=str(project / "state"),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "2"
