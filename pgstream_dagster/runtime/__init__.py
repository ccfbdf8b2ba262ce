"""
What the engine runs on: locked jars, and a Java to load them. Independent of Postgres.

The names of jars go in; files whose checksums were compared come out. May import `errors`. Read
`jars`, `java`.
"""
