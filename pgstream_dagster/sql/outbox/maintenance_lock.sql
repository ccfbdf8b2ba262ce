-- Wait until no other session maintains the partitions; held until the unlock. One row.
select pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended('pgstream outbox maintain', 0))
