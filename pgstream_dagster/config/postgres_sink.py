"""The keys of a sink whose target is another Postgres database."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from pgstream_dagster.config.section import Section, Variable

LOCK_SECONDS: Final = 60.0
"""As long as a migration of the target may take before the sink starts its transaction again."""


class PostgresSinkConfig(Section):
    """Rows in the tables of another database, in the transactions of the source."""

    dsn_variable: Variable = Field(
        description="Environment variable that holds the target's connection string. Direct, or"
        " through a pooler that pools sessions, not transactions."
    )
    tables_are: Literal["create", "existing"] = Field(
        default="create",
        alias="schema",
        description="`create`: missing tables, types, sequences, keys, indexes and constraints are"
        " created as on the source, and later changes of columns are applied; `existing`: the"
        " tables are yours, and a column that is missing stops the sink.",
    )
    on_conflict: Literal["error", "nothing", "update"] = Field(
        default="error",
        description="What happens to an inserted row whose key the target has: `error`: it becomes"
        " a dead letter; `nothing`: the target's row stays; `update`: it is overwritten. An update"
        " of a row that the target lacks: a dead letter, nothing, or an insert.",
    )
    lock_seconds: float = Field(
        default=LOCK_SECONDS,
        ge=0.1,
        le=86_400,
        description="Seconds to wait for a lock in the target before the transaction is rolled"
        " back and tried again.",
    )
