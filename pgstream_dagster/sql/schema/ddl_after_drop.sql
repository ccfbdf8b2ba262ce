-- The tables that lost something by the command which dropped objects, and are still there; only for
-- an event trigger. What ALTER dropped is reported at its end. Of an index only the name is known:
-- a replica identity that has no index any more was one.
create or replace function pgstream.ddl_after_drop(tag text) returns oid[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    relations oid[];
begin
    if tag ~ '^(ALTER|CREATE) ' then
        return '{}';
    end if;
    with dropped as (
        select d.classid, d.objid, d.objsubid, d.object_type, d.address_names
        from pg_event_trigger_dropped_objects() as d
        where not d.is_temporary
    )

    select array(
        select d.objid from dropped as d
        where d.classid = 'pg_class'::regclass and d.objsubid > 0
        union
        select to_regclass(format('%I.%I', d.address_names[1], d.address_names[2]))::oid
        from dropped as d
        where d.object_type in ('default value', 'table constraint')
        union
        select c.oid
        from pg_class as c
        where
            c.relkind in ('r', 'p') and c.relreplident = 'i'
            and exists (select from dropped as d where d.object_type = 'index')
            and not exists (
                select from pg_index as i where i.indrelid = c.oid and i.indisreplident
            )
    ) into relations;
    return pgstream.ddl_affected(relations, '{}');
end
$function$
