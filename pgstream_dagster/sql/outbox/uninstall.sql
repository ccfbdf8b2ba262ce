-- Remove the outbox: triggers, functions, tables, types; the schema if nothing else is in it. No
-- row. What is locked for longer than 2 seconds makes it fail, and then all stays.
do $do$
declare
    part record;
begin
    if pg_catalog.to_regclass('pgstream.outbox_version') is null then
        return;
    end if;
    for part in
        select t.tgname as name, t.tgrelid::pg_catalog.regclass as relation
        from pg_catalog.pg_trigger as t
        inner join pg_catalog.pg_proc as p on t.tgfoid = p.oid
        where
            t.tgparentid = 0 and p.proname ~ '^capture_\d+_'
            and p.pronamespace = 'pgstream'::pg_catalog.regnamespace
        order by 2, 1
    loop
        perform pgstream.lock_table(part.relation, 'access exclusive');
        execute pg_catalog.format('drop trigger %I on %s', part.name, part.relation);
    end loop;
    drop table pgstream.events, pgstream.subscriptions, pgstream.streams, pgstream.event_days,
        pgstream.outbox_sinks, pgstream.outbox_version cascade;
    for part in
        select p.oid::pg_catalog.regprocedure as name
        from pg_catalog.pg_proc as p
        where p.pronamespace = 'pgstream'::pg_catalog.regnamespace
    loop
        execute pg_catalog.format('drop function if exists %s cascade', part.name);
    end loop;
    drop type pgstream.operation_type;
    if not exists (
        select from pg_catalog.pg_depend as d
        where
            d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
            and d.refobjid = 'pgstream'::pg_catalog.regnamespace and d.deptype = 'n'
    ) and pg_catalog.pg_has_role(
        (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'pgstream'), 'USAGE'
    ) then
        drop schema pgstream;
    end if;
end
$do$
