"""
Sessions with Postgres: connections, slot, publication, catalog, and whether it is the same source.

Statements of `sql/` go out; typed rows and named errors come in. Decodes no row of a user's table
and writes nothing to the lake. May import `pipeline` and below. Read `connect`, `query`, `slot`,
`publication`, `catalog`, `schema_triggers`, then `preflight`, `prepare` and `origin`.
"""
