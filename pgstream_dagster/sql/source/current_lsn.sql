-- The end of the flushed WAL: everything committed until now is before it. One row; null on a
-- server in recovery that has replayed nothing.
select case
    when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
    else pg_catalog.pg_current_wal_flush_lsn()
end::text
