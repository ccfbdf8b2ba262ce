-- What should be generated for each table, operation and timing, and whether it is; no row: nothing
-- is in force.
select
    c.oid::pg_catalog.regclass::text as "table",
    g.operation::text,
    coalesce(
        p.prosrc = pgstream.capture_code(c.oid, g.operation, g.timing)
        and t.tgargs
        = pg_catalog.decode(
            coalesce(
                pg_catalog.md5(pgstream.condition_code(c.oid, g.operation, g.timing)), ''
            ),
            'escape'
        ) || '\x00',
        false
    ) as is_current,
    coalesce(t.tgenabled in ('O', 'A'), false) as is_enabled
from (
    select
        s.table_oid, s.operation,
        pgstream.timing_of(s.operation, s.timing) as timing
    from pgstream.subscriptions as s
    where s.is_enabled and s.broken is null
    group by 1, 2, 3
) as g
inner join pg_catalog.pg_class as c on g.table_oid = c.oid
left join pg_catalog.pg_proc as p
    on
        p.pronamespace = 'pgstream'::pg_catalog.regnamespace
        and p.proname = pg_catalog.lower(
            pg_catalog.format('capture_%s_%s_%s', c.oid, g.operation, g.timing)
        )
left join pg_catalog.pg_trigger as t on t.tgrelid = c.oid and t.tgfoid = p.oid
order by 1, 2
