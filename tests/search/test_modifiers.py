"""An index with modifiers: what they take away is nowhere in it, and rows are found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pgstream_dagster.config import parse
from pgstream_dagster.pipeline import Pipeline
from pgstream_dagster.search.compare import compare
from pgstream_dagster.search.redrive import redrive
from pgstream_dagster.search.session import opened
from pgstream_dagster.upkeep.setup import setup
from tests.support.harness import runner
from tests.support.harness import search_pipelines as search
from tests.support.plugins.cluster import psql
from tests.support.plugins.search import Node

PLAIN = "PLAINTEXT"
KEY = "PGSTREAM_MODIFIER_KEY"

FILE = """
pipeline: NAME
capture: {flush_seconds: 0.1, idle_advance_seconds: 1, catalog_check_seconds: 1}
search:
  ALIAS: {table: public.people, modifiers: [mask], reindex: auto}
modifiers:
  mask:
    transform:
      public.people: {email: {name: encrypted_aes_siv}, phone: {name: hash}}
    drop: {"*.*": [secret]}
"""

TABLES = [
    "create table people (email text primary key, phone text, secret text, doc text, n int)",
    "alter table people alter doc set storage external",
    """insert into people select 'PLAINTEXT ' || i, 'PLAINTEXT', 'PLAINTEXT', repeat('d', 4000), i
    from generate_series(1, 100) i""",
]

WORK = [
    "insert into people values ('PLAINTEXT new', 'PLAINTEXT', 'PLAINTEXT', null, 0)",
    "update people set n = n + 1000 where n between 10 and 20",
    "update people set email = email || ' moved' where n between 30 and 40",
    "update people set phone = 'PLAINTEXT other' where n between 35 and 50",
    "delete from people where n between 60 and 70",
    "alter table people rename phone to tel",
    "insert into people values ('PLAINTEXT renamed', 'PLAINTEXT', 'PLAINTEXT', 'd', 1)",
]


@pytest.fixture
def alias(index_prefix: str) -> str:
    return f"{index_prefix}people"


@pytest.fixture
def pipeline(dsn: str, tmp_path: Path, search_node: Node, alias: str) -> Pipeline:
    psql(dsn, *TABLES)
    plain = runner.new_pipeline(dsn, tmp_path)
    config = parse(FILE.replace("NAME", plain.name).replace("ALIAS", alias))
    environment = {KEY: "a key of the tests, of 32 bytes."}
    plain = replace(plain, config=config, environment=environment)
    made = search.with_search(plain, search_node.url, **config.search)
    setup(made)
    return made


def stored(pipeline: Pipeline, alias: str) -> dict[str, dict[str, object]]:
    """Every document of an alias, by id."""
    with opened(pipeline, alias) as session:
        session.cluster.refresh(alias)
        pages = session.cluster.pages(alias, {"size": 1000, "sort": ["_doc"]})
        return {hit.id: json.loads(hit.source) for page in pages for hit in page}


@pytest.mark.long
def test_the_index_has_nothing_plain_and_equals_the_modified_log(
    pipeline: Pipeline, dsn: str, alias: str
) -> None:
    with runner.streaming(pipeline), search.indexing(pipeline) as indexed:
        search.wait_until_indexed(pipeline, alias, indexed)
        psql(dsn, *WORK)
        search.wait_until_indexed(pipeline, alias, indexed)
    documents = stored(pipeline, alias)
    [(count,)] = psql(dsn, "select count(*) from people")
    assert len(documents) == count
    assert PLAIN not in repr(documents)
    assert all("secret" not in document for document in documents.values())
    assert {document["email"] for document in documents.values()} == documents.keys()
    compared = compare(pipeline, alias)
    assert compared.identical, compared
    assert redrive(pipeline, alias).refused == 0
