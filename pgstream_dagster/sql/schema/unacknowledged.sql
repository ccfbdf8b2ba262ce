-- The versions of `pgstream.schema_log` that are not acknowledged, and a position before which all of
-- them have committed. One row.
-- Not the end of the flushed WAL: what is seen may not be flushed yet (synchronous_commit).
select
    array(select l.version from pgstream.schema_log as l where not l.acked order by l.version)
    as versions,
    pg_catalog.pg_current_wal_insert_lsn()::text as lsn
