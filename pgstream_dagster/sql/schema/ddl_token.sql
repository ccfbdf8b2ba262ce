-- The secret that our reports carry: any role may write logical messages, and must not forge reports.
-- It is a large object of the owner: a table would be published, or emptied by a crash; comments,
-- settings and the code of functions are public. The comment on the event trigger says which one.
create or replace function pgstream.ddl_token() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $function$
    select
        encode(
            lo_get(
                substring(obj_description(e.oid, 'pg_event_trigger') from '"token": ([0-9]+)')::oid
            ),
            'escape'
        )
    from pg_event_trigger as e
    where e.evtname = 'pgstream_schema_ddl'
$function$
