"""
A Delta table: durable compare-and-set commits. Knows no Postgres and no change log.

Arrow tables go in; synced files and commits come out. Holds the one JVM of a process, which Spark
and Delta Kernel share. May import `runtime`, `schema` and below. Read `uri`, `jvm`, `java_names`,
`kernel`, `delta_table`, `entries`, then `commit_lock`, `fsync`, `recovery`, `post_commit`; and
`metastore`.
"""
