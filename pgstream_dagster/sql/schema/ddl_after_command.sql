-- The tables that the command changed which just ended; only for an event trigger.
-- ALTER SCHEMA changes the name of every table and type in it. DETACH PARTITION is a command on the
-- partitioned table alone: what it made a table of its own is found as those written to by this
-- transaction that have all its columns, which may be more. ALTER INDEX renames tables, too, and may
-- complete the key of a partitioned one.
-- The commands of an extension's script come one by one; the extension's own tables, and those that
-- use its types, are reported once at its end.
create or replace function pgstream.ddl_after_command() returns oid[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    relations oid[];
    types oid[];
    affected oid[];
    is_in_extension boolean;
begin
    with command as (
        select c.classid, c.objid, c.command_tag, c.in_extension
        from pg_event_trigger_ddl_commands() as c
    ),

    member as (
        select d.classid, d.objid as oid
        from command as c
        inner join pg_depend as d
            on c.objid = d.refobjid and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
        where c.classid = 'pg_extension'::regclass
    ),

    relation as (
        select c.objid as oid from command as c where c.classid = 'pg_class'::regclass
        union all
        select i.indrelid
        from command as c inner join pg_index as i on c.objid = i.indexrelid
        where c.classid = 'pg_class'::regclass and c.command_tag = 'ALTER INDEX'
        union all
        select k.oid
        from command as c inner join pg_class as k on c.objid = k.relnamespace
        where c.classid = 'pg_namespace'::regclass and c.command_tag = 'ALTER SCHEMA'
        union all
        select m.oid from member as m where m.classid = 'pg_class'::regclass
        union all
        select former.oid
        from command as c
        inner join pg_class as root on c.objid = root.oid and root.relkind = 'p'
        inner join pg_class as former
            on former.relkind in ('r', 'p') and not former.relispartition
            and age(former.xmin) <= 0
        where
            c.classid = 'pg_class'::regclass and c.command_tag = 'ALTER TABLE'
            and not exists (
                select a.attname from pg_attribute as a
                where a.attrelid = root.oid and a.attnum > 0 and not a.attisdropped
                except
                select a.attname from pg_attribute as a
                where a.attrelid = former.oid and a.attnum > 0 and not a.attisdropped
            )
    ),

    type as (
        select c.objid as oid
        from command as c
        where c.classid = 'pg_type'::regclass and c.command_tag in ('ALTER TYPE', 'ALTER DOMAIN')
        union all
        select t.oid
        from command as c inner join pg_type as t on c.objid = t.typnamespace
        where c.classid = 'pg_namespace'::regclass and c.command_tag = 'ALTER SCHEMA'
        union all
        select m.oid from member as m where m.classid = 'pg_type'::regclass
    )

    select
        array(select r.oid from relation as r),
        array(select t.oid from type as t),
        coalesce((select bool_or(c.in_extension) from command as c), false)
    into relations, types, is_in_extension;

    if cardinality(relations) + cardinality(types) = 0 then
        return '{}';
    end if;
    affected := pgstream.ddl_affected(relations, types);
    if is_in_extension then
        affected := array(
            select a.oid
            from unnest(affected) as a (oid)
            where
                not exists (
                    select from pg_depend as d
                    where
                        d.classid = 'pg_class'::regclass and d.objid = a.oid and d.deptype = 'e'
                )
            order by a.oid
        );
    end if;
    return affected;
end
$function$
