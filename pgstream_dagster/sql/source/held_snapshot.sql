-- The oldest snapshot that a copy of this database holds: for how many seconds, and how many
-- transactions have begun since, whose rows VACUUM keeps. No row when none is held. Sessions of
-- other roles are visible only to members of pg_read_all_stats.
select
    extract(epoch from pg_catalog.clock_timestamp() - min(a.xact_start))::float8 as seconds,
    max(pg_catalog.age(a.backend_xmin)) as transactions
from pg_catalog.pg_stat_activity as a
where a.datname = pg_catalog.current_database()
    and (a.application_name like 'pgstream copy%' or a.application_name = 'pgstream guard')
    and a.backend_xmin is not null
having count(*) > 0
