-- Take the lock of the one session that copies tables of a pipeline, for as long as it lives.
--   %(pipeline)s  text
-- Always one row: null when this session has it now, else the server process that has it (0: it
-- was released in this moment).
with wanted as materialized (
    select pg_catalog.hashtext('pgstream copier') as class, pg_catalog.hashtext(%(pipeline)s) as id
), taken as materialized (
    select pg_catalog.pg_try_advisory_lock(wanted.class, wanted.id) as is_ours from wanted
)
select case when not taken.is_ours then coalesce((
    select l.pid
    from pg_catalog.pg_locks as l, wanted
    where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
        and l.classid::bigint = wanted.class & x'ffffffff'::bigint
        and l.objid::bigint = wanted.id & x'ffffffff'::bigint
        and l.database = (
            select d.oid from pg_catalog.pg_database as d
            where d.datname = pg_catalog.current_database()
        )
    limit 1
), 0) end
from taken
