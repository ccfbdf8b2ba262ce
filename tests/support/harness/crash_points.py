"""The steps at which tests end a process: every failpoint, some of them at a later passing."""

from __future__ import annotations

IN_SETUP = (
    "setup.publication",
    "setup.slot",
    "setup.identity",
    "setup.watermark",
    "copy.guard",
    "copy.task:3",
    "copy.files:2",
    "copy.committed:3",
    "copy.recorded:2",
)
"""The number after a name is the passing at which the process ends: some tables are copied."""

IN_STREAM = (
    "spool.write:2",
    "spool.commit",
    "spool.read",
    "land.schema",
    "land.file:3",
    "land.sync:3",
    "land.commit:4",
    "land.committed:3",
    "land.post_commit:2",
    "confirm.sent:4",
    "idle.committed",
)

BUILDING = (
    *("build.recorded", "build.task", "build.loaded", "build.caught_up", "build.verified"),
    *("build.created", "promote.ready", "promote.moved", "promote.recorded", "retire.dropped"),
)

ROLLING_BACK = ("promote.ready", "promote.moved", "promote.recorded")

INDEXING = ("index.completed", "index.sent:3", "index.delivered:2")

DELIVERING_TO_KAFKA = ("kafka.sent", "kafka.committed", "kafka.sent:4", "kafka.committed:3")
"""In the process that delivers; `tests/sinks/test_kafka.py` passes them all."""

DELIVERING = ("sink.delivered:2", "sink.saved:6")
"""In the process of the sinks; `tests/sinks/test_all_targets.py` passes them."""

DELIVERING_TO_POSTGRES = ("postgres_sink.applied", "postgres_sink.committed")
"""In the process that delivers; `tests/sinks/test_postgres_kill.py` passes them all."""

WRITING_FILES = ("files.written", "files.written:3")
"""In the process of the sinks; `tests/sinks/test_files_kill.py` passes them all."""

MERGING = (
    *("tables.folded", "tables.evolving", "tables.written", "tables.merged"),
    *("tables.rebuilt", "tables.passed", "tables.recorded"),
    *("tables.rewritten", "tables.removing", "tables.built"),
)
"""In the process that merges; `tests/lake/test_typed_tables_crash.py` passes them all but for
`tables.rewritten` (`tests/lake/test_typed_evolution_kill.py`), `tables.removing`
(`tests/lake/test_typed_features.py`) and `tables.built` (`tests/lake/test_typed_building.py`)."""

APPROVING = ("tables.approving", "tables.approved")
"""In the process that approves; `tests/lake/test_typed_evolution_kill.py` passes them all."""

MERGING_HISTORIES = ("history.merged", "history.passed")
"""In the same process; `tests/lake/test_typed_history_source.py` passes the first."""

CONSUMING = (
    *("land.schema", "copy.committed:2", "land.file:4", "land.sync:4", "land.commit:4"),
    *("land.committed:3", "confirm.sent:3"),
)
"""In a process that reads Kafka; all in `tests/sinks/test_kafka_source.py` with `make crash`."""
