"""
From the replication socket to the change log.

Bytes of one slot go in; commits of whole transactions come out, and Postgres is told a position
only after its commit is durable. May import `source`, `copy` and below. Read `stream`, `pump`,
`transactions`, `decoding`, then `reports`, `reporting`, `due`, `recopier`, `spool`, `resent` and
`table_names`.
"""
