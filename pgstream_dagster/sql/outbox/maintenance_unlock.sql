-- Let other sessions maintain the partitions. One row.
select pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended('pgstream outbox maintain', 0))
