-- The transaction that has been writing for longest: the slot keeps all WAL since it began. No row
-- when none writes. Sessions of other roles are visible only to members of pg_read_all_stats.
select
    w.holder,
    extract(epoch from pg_catalog.clock_timestamp() - w.began)::float8 as seconds
from (
    select
        pg_catalog.format('server process %s (%s)', a.pid, a.application_name) as holder,
        a.xact_start as began
    from pg_catalog.pg_stat_activity as a
    where a.backend_xid is not null
    union all
    select
        pg_catalog.format('prepared transaction %L', p.gid),
        p.prepared
    from pg_catalog.pg_prepared_xacts as p
) as w
where w.began is not null
order by w.began
limit 1
