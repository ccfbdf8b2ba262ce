"""A pipeline in Dagster whose source is Kafka: its jobs and checks work without a Postgres."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml

from pgstream_dagster.build import build_definitions
from pgstream_dagster.config.kafka import KafkaConfig
from pgstream_dagster.readers.change import Change, ChangeBatch
from pgstream_dagster.resources.lake import DeltaLake
from pgstream_dagster.sinks.kafka.sink import KafkaSink
from tests.support.harness.sink_changes import History, version
from tests.support.plugins.kafka import Broker

pytestmark = pytest.mark.filterwarnings("ignore:.*dagster_run.*:DeprecationWarning")

ORDERS = version("orders", {"id": "integer", "note": "text"}, relation_id=16_401)
DRAIN = dg.RunConfig(ops={"land_changes": {"config": {"mode": "drain"}}})


def write(servers: str, prefix: str, changes: list[Change]) -> None:
    """What the sink of another pipeline writes."""
    settings = {"topic": f"{prefix}{{relation}}", "schemas_topic": f"{prefix}schemas", "create": {}}
    config = KafkaConfig.model_validate({"bootstrap_servers": servers, **settings})
    sink = KafkaSink(config, pipeline="shop", sink="events", environment={})
    sink.open()
    assert sink.deliver(ChangeBatch(changes)) == {}
    sink.close()


@pytest.fixture
def definitions(kafka: Broker, topic_prefix: str, tmp_path: Path) -> dg.Definitions:
    source = {
        "bootstrap_servers": kafka.servers,
        "topics": [f"{topic_prefix}orders"],
        "schemas_topic": f"{topic_prefix}schemas",
        "group": topic_prefix,
    }
    file = tmp_path / "pgstream.yaml"
    file.write_text(yaml.safe_dump({"pipeline": "copy_of_shop", "source": {"kafka": source}}))
    lake = DeltaLake(root=str(tmp_path / "lake"), state=str(tmp_path / "state"))
    return build_definitions(file, lake=lake)


@pytest.mark.long
def test_every_job_of_a_pipeline_that_reads_topics_works(
    kafka: Broker, topic_prefix: str, definitions: dg.Definitions, spark: object
) -> None:
    history = History()
    changes = [history.insert(ORDERS, id=str(n), note="x") for n in range(20)]
    write(kafka.servers, topic_prefix, changes)
    with dg.DagsterInstance.ephemeral() as instance:

        def run(job: str, config: dg.RunConfig | None = None) -> dg.ExecuteInProcessResult:
            result = definitions.resolve_job_def(job).execute_in_process(
                instance=instance, run_config=config
            )
            assert result.success
            return result

        for job in ("check_source", "setup"):
            run(job)
        [landed] = run("stream", DRAIN).asset_materializations_for_node("land_changes")
        assert landed.metadata["rows"].value >= len(changes)
        run("optimize")
        [sound] = run("check").get_asset_check_evaluations()
        assert sound.passed, sound.metadata
