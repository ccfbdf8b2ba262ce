-- The tables to report when DDL changed relations and types: each table once, by oid.
--   relations  what was changed itself: tables, composite types; anything else is passed over
--   types      what was changed itself
-- Beside the tables themselves: those with a column whose type depends on a changed one through
-- arrays, domains, ranges and composite types, and tables OF such a type; the row types of changed
-- tables count, for they have the tables' names. Then all that inherit from one of them.
-- Only what the command itself names is locked until its commit. Of the others a report says what had
-- committed when the command ran: DDL of another session may commit before it, and is then older here.
-- A partition is reported as the root of its tree; as itself, too, if a publication lists it.
create or replace function pgstream.ddl_affected(relations oid[], types oid[]) returns oid[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    return array(
        with recursive changed as (
            (
                select u.oid from unnest(types) as u (oid)
                union all
                select c.reltype from pg_class as c where c.oid = any(relations) and c.reltype <> 0
            )
            union
            select case when d.classid = 'pg_type'::regclass then d.objid else c.reltype end
            from changed as t
            inner join pg_depend as d on t.oid = d.refobjid and d.refclassid = 'pg_type'::regclass
            left join pg_class as c on d.objid = c.oid and d.classid = 'pg_class'::regclass
            where d.classid = 'pg_type'::regclass or c.relkind = 'c'
        ),

        touched as (
            select c.oid, c.relispartition
            from pg_class as c
            where c.oid = any(relations) and c.relkind in ('r', 'p')
            union
            select c.oid, c.relispartition
            from changed as t
            inner join pg_depend as d
                on t.oid = d.refobjid and d.refclassid = 'pg_type'::regclass
                and d.classid = 'pg_class'::regclass
            inner join pg_class as c on d.objid = c.oid and c.relkind in ('r', 'p')
        ),

        roots as (
            select case when t.relispartition then pg_partition_root(t.oid) else t.oid end as oid
            from touched as t
            union
            select i.inhrelid
            from roots as r
            inner join pg_class as c on r.oid = c.oid and c.relkind = 'r'
            inner join pg_inherits as i on c.oid = i.inhparent
        ),

        reported as (
            select r.oid from roots as r
            union
            select l.prrelid
            from pg_publication_rel as l
            inner join pg_class as c on l.prrelid = c.oid and c.relispartition
            inner join roots as r on r.oid = pg_partition_root(l.prrelid)
        )

        select c.oid
        from reported as r
        inner join pg_class as c on r.oid = c.oid
        where c.relkind in ('r', 'p') and c.relpersistence <> 't'
        order by c.oid
    );
end
$function$
