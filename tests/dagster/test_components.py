"""A pipeline as a component: what `defs.yaml` says, and what it says wrong."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.scaffold.scaffold import ScaffoldRequest

from pgstream_dagster.components import PgstreamComponent, PgstreamScaffolder

TYPE = "pgstream_dagster.components.PgstreamComponent"


def project(folder: Path, *prefixes: str, more: str = "") -> Path:
    """A project with a component per prefix."""
    package = folder / "shop_project"
    for prefix in prefixes:
        defs = package / "defs" / prefix
        defs.mkdir(parents=True)
        (defs / "pgstream.yaml").write_text(
            f"pipeline: {prefix}\nsearch: {{items: {{table: i}}}}\n"
        )
        attributes = f"attributes:\n  file: pgstream.yaml\n  prefix: {prefix}\n{more}"
        (defs / "defs.yaml").write_text(f"type: {TYPE}\n{attributes}")
    (package / "defs").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "shop_project"\nversion = "1"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_project"\n'
    )
    return folder


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.startswith("shop_project")]:
        monkeypatch.delitem(sys.modules, name)
    return dg.load_from_defs_folder(path_within_project=folder / "shop_project")


def test_component_makes_the_pipelines_of_several_files(tmp_path, monkeypatch):
    repository = load(project(tmp_path, "shop", "crm"), monkeypatch).get_repository_def()
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert {"shop/change_log", "shop/search/items", "crm/change_log", "crm/search/items"} <= keys
    assert {"shop_stream", "crm_reindex"} <= {job.name for job in repository.get_all_jobs()}


def test_wrong_key_is_named_with_its_line(tmp_path, monkeypatch):
    folder = project(tmp_path, "shop", more="  colour: blue\n")
    with pytest.raises(ComponentTreeException) as raised:
        load(folder, monkeypatch)
    cause = str(raised.value.__cause__ or raised.value.__context__)
    assert "defs.yaml:5" in cause
    assert "colour" in cause


@pytest.mark.parametrize("executor", ["in_process", "multiprocess"])
def test_every_job_runs_its_steps_with_the_executor_given(tmp_path, monkeypatch, executor):
    folder = project(tmp_path, "shop", "crm", more=f"  executor: {executor}\n")
    jobs = load(folder, monkeypatch).get_repository_def().get_all_jobs()
    ours = [job for job in jobs if not job.name.startswith("__")]
    assert {job.executor_def.name for job in ours} == {executor}


def test_component_is_registered():
    registered = entry_points(group="dagster_dg_cli.registry_modules")
    assert "pgstream_dagster.components" in {entry.value for entry in registered}
    assert issubclass(PgstreamComponent, dg.Component)


@pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`")
def test_secrets_stay_in_the_environment(tmp_path, monkeypatch):
    secret = "host=db user=capture password=hunter2"
    monkeypatch.setenv("SHOP_DSN", secret)
    monkeypatch.setenv("SHOP_KEY", "k3y")
    more = (
        "  dsn_variable: SHOP_DSN\n  search_url: https://search:9200\n"
        "  search_api_key_variable: SHOP_KEY\n"
    )
    definitions = load(project(tmp_path, "shop", more=more), monkeypatch)
    snapshot = serialize_value(RepositorySnap.from_def(definitions.get_repository_def()))
    assert "SHOP_DSN" in snapshot
    assert "hunter2" not in snapshot
    assert "k3y" not in snapshot
    source = (definitions.resources or {})["shop_pgstream_source"].process_config_and_initialize()
    assert source.address() == secret


def test_component_says_what_its_attributes_mean():
    assert all(field.description for field in PgstreamComponent.model_fields.values())


def test_pipeline_is_given_inline(tmp_path, monkeypatch):
    folder = project(tmp_path, "shop")
    (folder / "shop_project" / "defs" / "shop" / "pgstream.yaml").unlink()
    (folder / "shop_project" / "defs" / "shop" / "defs.yaml").write_text(
        f"type: {TYPE}\nattributes:\n"
        "  pipeline: {pipeline: shop, search: {parts: {table: parts}}}\n"
    )
    graph = load(folder, monkeypatch).get_repository_def().asset_graph
    assert dg.AssetKey(["search", "parts"]) in graph.get_all_asset_keys()


def test_attributes_of_assets_come_from_the_project(tmp_path, monkeypatch):
    translation = "{group_name: bronze, owners: ['team:platform'], key_prefix: [raw, shop]}"
    folder = project(tmp_path, "shop", more=f"  translation: {translation}\n")
    graph = load(folder, monkeypatch).get_repository_def().asset_graph
    log = graph.get(dg.AssetKey(["raw", "shop", "shop", "change_log"]))
    assert (log.group_name, list(log.owners)) == ("bronze", ["team:platform"])
    assert log.parent_keys <= graph.get_all_asset_keys()


def test_scaffolded_component_loads_and_names_every_attribute(tmp_path, monkeypatch):
    folder = project(tmp_path)
    target = folder / "shop_project" / "defs" / "shop"
    request = ScaffoldRequest(
        type_name=TYPE,
        target_path=target,
        scaffold_format="yaml",
        project_root=folder,
        params=None,
    )
    PgstreamScaffolder().scaffold(request)
    graph = load(folder, monkeypatch).get_repository_def().asset_graph
    assert dg.AssetKey("change_log") in graph.get_all_asset_keys()
    text = (target / "defs.yaml").read_text()
    assert [name for name in PgstreamComponent.model_fields if f"{name}:" not in text] == []
