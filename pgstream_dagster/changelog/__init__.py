"""
The change log: a Delta table of every change, and what is derived from it without another system.

Complete transactions and copies go in; durable commits, the fold of a table, and a tail of new rows
come out. Knows no Postgres connection and no search cluster: a source is any object with the
methods of `land.ChangeSource`. May import `delta`, `wire` and below. Read `lake`, `land`, `log`,
`log_files`, `tail`, `fold`, then `ledger` and `schema_log`.
"""
