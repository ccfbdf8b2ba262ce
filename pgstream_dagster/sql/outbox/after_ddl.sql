-- Event trigger: after DDL, let the subscriptions of what it changed follow; those of a table that was
-- dropped take up the next one of its name. Whatever fails here is a warning, never an error of the
-- statement, and no DDL waits for an open change of subscriptions; `pgstream outbox check` reports it.
create or replace function pgstream.after_ddl() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $function$
declare
    relation oid;
begin
    if tg_event = 'sql_drop' then
        for relation in
            select distinct s.table_oid
            from pgstream.subscriptions as s
            inner join pg_event_trigger_dropped_objects() as d on s.table_oid = d.objid
            where d.classid = 'pg_class'::regclass and d.objsubid = 0
        loop
            perform pgstream.follow(relation);
        end loop;
    else
        for relation in
            select distinct s.table_oid
            from pgstream.subscriptions as s
            inner join pg_event_trigger_ddl_commands() as c
                on
                    s.table_oid = c.objid or c.command_tag = 'ALTER SCHEMA'
                    or to_regclass(format('%I.%I', s.schema_name, s.table_name)) = c.objid
                    and not exists (select from pg_class as k where k.oid = s.table_oid)
        loop
            perform pgstream.follow(relation);
        end loop;
    end if;
exception when others then
    raise warning 'subscriptions could not follow %: %', tg_tag, sqlerrm
    using hint = 'Run pgstream outbox check.';
end
$function$
