"""The environment: what is read, what is refused, and that nothing is guessed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstream_dagster import settings
from pgstream_dagster.errors import InvalidDsn, InvalidSetting, MissingSetting, SeveralProblems
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.cluster import SearchSettings

GOOD = {"PGSTREAM_DSN": "host=db dbname=shop", "PGSTREAM_LAKE": "/lakes/shop"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pgstream.yaml"
    path.write_text("pipeline: shop\n")
    return path


def test_dsn_is_used_as_it_is(file):
    assert Pipeline.from_file(file, GOOD).dsn == "host=db dbname=shop"


def test_dsn_may_be_a_url():
    url = "postgresql://reader@db:5433/shop"
    assert settings.dsn({"PGSTREAM_DSN": url}) == url


def test_variables_of_libpq_work_in_place_of_the_dsn():
    value = settings.dsn({"PGHOST": "db", "PGUSER": "reader", "PGPASSWORD": "it's a secret"})
    assert conninfo_to_dict(value) == {
        "host": "db",
        "user": "reader",
        "password": "it's a secret",
    }


def test_service_is_left_to_its_file():
    value = settings.dsn({"PGSERVICE": "shop", "PGPORT": "1"})
    assert conninfo_to_dict(value) == {"service": "shop"}


@pytest.mark.parametrize("value", [{}, {"PGSTREAM_DSN": ""}, {"PGPASSWORD": "secret"}])
def test_source_is_never_guessed(value):
    with pytest.raises(MissingSetting, match="PGSTREAM_DSN is not set"):
        settings.dsn(value)


def test_unreadable_dsn_is_not_repeated():
    """P79."""
    with pytest.raises(InvalidDsn) as raised:
        settings.dsn({"PGSTREAM_DSN": "host=db password=top secret"})
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_lake_is_never_guessed():
    with pytest.raises(MissingSetting, match="PGSTREAM_LAKE is not set"):
        settings.lake_root({"PGSTREAM_LAKE": " "})


def test_state_is_an_absolute_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert settings.state_folder({}) == tmp_path / ".state"
    assert settings.state_folder({"PGSTREAM_STATE": "here"}) == tmp_path / "here"


@pytest.mark.parametrize("heap", ["lots", "0g", "1", "2 g", "-1g"])
def test_heap_that_java_would_refuse_is_refused(heap):
    with pytest.raises(InvalidSetting, match="PGSTREAM_JVM_HEAP"):
        settings.jvm_settings({"PGSTREAM_JVM_HEAP": heap})


def test_jvm_settings_are_taken():
    jvm = settings.jvm_settings(
        {"PGSTREAM_JVM_HEAP": "2g", "PGSTREAM_SPARK_MASTER": "spark://head:7077"}
    )
    assert (jvm.heap, jvm.master) == ("2g", "spark://head:7077")


def test_everything_wrong_is_named_at_once(tmp_path):
    file = tmp_path / "pgstream.yaml"
    file.write_text("pipeline: shop\ncolour: blue\nsource: {tabels: all}\n")
    with pytest.raises(SeveralProblems) as raised:
        Pipeline.from_file(file, {"PGSTREAM_JVM_HEAP": "lots"})
    value = str(raised.value)
    for fact in (
        "colour",
        "source.tabels",
        "PGSTREAM_DSN is not set",
        "PGSTREAM_LAKE is not set",
        "PGSTREAM_JVM_HEAP is 'lots'",
    ):
        assert fact in value


def test_one_problem_keeps_its_own_name(file):
    with pytest.raises(MissingSetting):
        Pipeline.from_file(file, {"PGSTREAM_DSN": "host=db"})


def test_dotenv_wins_over_the_environment_as_in_dagster(tmp_path):
    """P79."""
    (tmp_path / ".env").write_text(
        "PGSTREAM_LAKE=./lake\nPGSTREAM_DSN='host=x password=a#b'\nEMPTY\n"
    )
    given = {"PGSTREAM_LAKE": "/elsewhere", "PGSTREAM_STATE": "/state", "EMPTY": "no"}
    assert settings.with_dotenv(given, tmp_path) == {
        **given,
        "PGSTREAM_LAKE": "./lake",
        "PGSTREAM_DSN": "host=x password=a#b",
    }
    assert settings.overridden(given, tmp_path) == ["PGSTREAM_LAKE"]
    assert settings.overridden({}, tmp_path) == []


def test_pipeline_file_is_given_or_named_or_in_this_folder():
    assert settings.pipeline_file(Path("a.yaml"), {"PGSTREAM_CONFIG": "b"}) == Path("a.yaml")
    assert settings.pipeline_file(None, {"PGSTREAM_CONFIG": "b.yaml"}) == Path("b.yaml")
    assert settings.pipeline_file(None, {}) == Path("pgstream.yaml")


def test_printing_a_pipeline_shows_no_secret(file):
    """P79."""
    pipeline = Pipeline.from_file(file, {**GOOD, "PGSTREAM_DSN": "host=db password=hunter2"})
    assert "hunter2" not in repr(pipeline)


SEARCH = {"PGSTREAM_SEARCH_URL": "https://search:9200"}


def test_without_an_address_there_is_no_search():
    assert settings.search_settings({"PGSTREAM_SEARCH_USER": "indexer"}) is None
    assert settings.search_settings({"PGSTREAM_SEARCH_URL": " "}) is None


def test_search_settings_are_taken(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.write_text("")
    with_user = {"PGSTREAM_SEARCH_USER": "indexer", "PGSTREAM_SEARCH_PASSWORD": "hunter2"}
    value = settings.search_settings({**SEARCH, **with_user, "PGSTREAM_SEARCH_CA": str(authority)})
    assert value == SearchSettings(
        "https://search:9200", "indexer", "hunter2", ca_file=str(authority)
    )
    value = settings.search_settings({**SEARCH, "PGSTREAM_SEARCH_API_KEY": "k3y"})
    assert value == SearchSettings("https://search:9200", api_key="k3y")


@pytest.mark.parametrize("url", ["search:9200", "ftp://search", "https://", "search", "http:///x"])
def test_address_of_no_server_is_refused(url):
    with pytest.raises(InvalidSetting, match="PGSTREAM_SEARCH_URL") as raised:
        settings.search_settings({"PGSTREAM_SEARCH_URL": url})
    assert "https://host:port" in str(raised.value)


def test_object_store_is_refused_before_anything_is_made():
    with pytest.raises(InvalidSetting, match="PGSTREAM_LAKE is 's3a://bucket/shop'"):
        settings.lake_root({"PGSTREAM_LAKE": "s3a://bucket/shop"})
    assert settings.lake_root({"PGSTREAM_LAKE": "file:///lakes/shop"}) == "file:///lakes/shop"


def test_deployed_is_named_or_the_package():
    assert settings.deployed({"PGSTREAM_DEPLOYED": "abc"}) == "abc"
    assert settings.deployed({}) == metadata.version("pgstream-dagster")


def test_alerts_go_to_a_webhook_and_its_secret_is_not_shown():
    url = "https://chat.internal/hooks/s3cret"
    assert settings.alert_url({"PGSTREAM_ALERT_URL": url}) == url
    assert settings.alert_url({}) is None
    with pytest.raises(InvalidSetting, match="PGSTREAM_ALERT_URL") as raised:
        settings.alert_url({"PGSTREAM_ALERT_URL": "chat.internal/s3cret"})
    assert "s3cret" not in str(raised.value)


def test_secrets_in_the_address_are_refused_and_not_repeated():
    with pytest.raises(InvalidSetting, match="PGSTREAM_SEARCH_USER") as raised:
        settings.search_settings({"PGSTREAM_SEARCH_URL": "https://indexer:hunter2@search"})
    assert "hunter2" not in str(raised.value)


def test_user_and_key_together_are_refused():
    both = {"PGSTREAM_SEARCH_USER": "indexer", "PGSTREAM_SEARCH_API_KEY": "k3y"}
    with pytest.raises(InvalidSetting, match="PGSTREAM_SEARCH_USER is 'indexer'") as raised:
        settings.search_settings({**SEARCH, **both})
    assert "k3y" not in str(raised.value)


def test_authority_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match="PGSTREAM_SEARCH_CA"):
        settings.search_settings({**SEARCH, "PGSTREAM_SEARCH_CA": str(tmp_path)})


def test_printing_search_settings_shows_no_secret(file):
    secrets = {"PGSTREAM_SEARCH_USER": "indexer", "PGSTREAM_SEARCH_PASSWORD": "hunter2"}
    shown = repr(settings.search_settings({**SEARCH, **secrets}))
    assert "search:9200" in shown
    assert "hunter2" not in shown
    shown = repr(settings.search_settings({**SEARCH, "PGSTREAM_SEARCH_API_KEY": "k3y"}))
    assert "k3y" not in shown
    assert "hunter2" not in repr(Pipeline.from_file(file, {**GOOD, **SEARCH, **secrets}))


def test_wrong_search_settings_are_named_with_all_else(file):
    with pytest.raises(SeveralProblems) as raised:
        Pipeline.from_file(file, {"PGSTREAM_SEARCH_URL": "search"})
    for fact in ("PGSTREAM_DSN", "PGSTREAM_LAKE", "PGSTREAM_SEARCH_URL is 'search'"):
        assert fact in str(raised.value)


def test_the_page_says_what_the_code_says():
    page = Path(__file__).parents[2] / "docs" / "reference" / "environment.md"
    assert page.read_text(encoding="utf-8") == settings.reference(), (
        "write it again: python -c 'from pgstream_dagster.settings import reference;"
        f' print(reference(), end="")\' > {page.name}'
    )


def test_the_key_of_transformers_is_long_and_never_shown():
    assert settings.modifier_key({}) is None
    assert settings.modifier_key({"PGSTREAM_MODIFIER_KEY": "k" * 32}) == b"k" * 32
    with pytest.raises(InvalidSetting, match="openssl rand") as raised:
        settings.modifier_key({"PGSTREAM_MODIFIER_KEY": "hunter2"})
    assert "hunter2" not in str(raised.value)
