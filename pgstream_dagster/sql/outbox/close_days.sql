-- Note of each day that is over, once the transactions that may have written to it have ended, that
-- all its commits are before the current position. One row.
with closed as (
    update pgstream.event_days as d
    set
        closed_lsn = pg_catalog.pg_current_wal_insert_lsn(),
        closed_at = pg_catalog.clock_timestamp()
    where
        d.closed_lsn is null
        and d.closing_xid <= pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())
    returning d.day
)

select count(*) from closed
