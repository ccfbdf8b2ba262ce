-- Report what the command did which just ended; only for an event trigger.
-- `unknown` is reported, and nothing else, where `set pgstream.skip_log = true` asks for it; for
-- more than 1,000 tables, which would be many megabytes of WAL; and in a transaction above READ
-- COMMITTED: its snapshot may miss what others did to the table since. It is reported as well while
-- another session locks one of the tables exclusively: that was not waited for, and may be DDL.
-- `is_locked`: whether this session keeps others from altering the table until it commits, as ALTER
-- TABLE does; a command on a type or schema does not, so what it says of a table may soon be older.
create or replace function pgstream.ddl_report(event text, tag text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    affected oid[] := '{}';
    dropped jsonb := '[]';
    current_xid bigint;
    locked oid[];
    command constant text := left(current_query(), 8193);  -- once: it may have many megabytes
begin
    if event = 'sql_drop' then
        affected := pgstream.ddl_after_drop(tag);
        select coalesce(
            jsonb_agg(
                jsonb_build_object(
                    'relation_id', d.objid::bigint, 'namespace', d.schema_name,
                    'name', d.object_name
                )
                order by d.ordinality
            ),
            '[]'
        ) into dropped
        from pg_event_trigger_dropped_objects() with ordinality as d
        where d.object_type = 'table' and d.objsubid = 0 and not d.is_temporary;
    else
        affected := pgstream.ddl_after_command();
    end if;
    if cardinality(affected) + jsonb_array_length(dropped) = 0 then
        return;
    end if;
    if
        lower(current_setting('pgstream.skip_log', true)) in ('true', 't', 'on', 'yes', 'y', '1')
        or cardinality(affected) + jsonb_array_length(dropped) > 1000
        or current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
    then
        perform pgstream.ddl_emit(pgstream.ddl_xid(), 'unknown', tag, null, null);
        return;
    end if;
    current_xid := pgstream.ddl_log(affected, dropped);
    perform pgstream.ddl_emit(current_xid, 'drop', tag, command, d.value)
    from jsonb_array_elements(dropped) as d;
    locked := array(
        select l.relation
        from pg_locks as l
        where
            l.pid = pg_backend_pid() and l.locktype = 'relation' and l.granted
            and l.mode in (
                'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                'AccessExclusiveLock'
            )
    );
    perform pgstream.ddl_emit(
        current_xid, 'describe', tag, command,
        pgstream.ddl_table(a.oid) || jsonb_build_object('is_locked', a.oid = any(locked))
    )
    from unnest(affected) as a (oid);
    if exists (
        select from pg_locks as l
        where
            l.relation = any(affected) and l.mode = 'AccessExclusiveLock' and l.granted
            and l.pid is distinct from pg_backend_pid()
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    ) then
        perform pgstream.ddl_emit(current_xid, 'unknown', tag, null, null);
    end if;
end
$function$
