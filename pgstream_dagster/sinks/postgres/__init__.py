"""
From the change log to the tables of another Postgres database, exactly once.

Batches of changes go in; the target's transactions, each with the cursor of its last batch, come
out. Imports `readers`, `source` (its sessions) and below. Read `sink`, which does the work of a
batch, then `plan` and `fold` (what to do, pure), `write` (the statements), `evolve` and `schema`
(tables and their changes), `takeover` (a name that another table has now), `failures` (what an
error of the target means).
"""

from pgstream_dagster.sinks.postgres.sink import PostgresSink
from pgstream_dagster.sinks.postgres.target import Target, target_of

__all__ = ["PostgresSink", "Target", "target_of"]
