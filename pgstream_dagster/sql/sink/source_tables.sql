-- Tables of the source that a sink may receive, parents before partitions. `root_*` is the table
-- that a partition belongs to in the end: what the publication sends its rows as. `partition_needs`
-- are the columns that a partitioned table is partitioned by, in expressions too.
--   %(publication)s  text  null: every table
with recursive tree as (
    select
        c.oid, c.relnamespace, c.relname, c.relkind, c.relpartbound,
        c.oid as root_oid, null::oid as parent_oid, 0 as depth
    from pg_catalog.pg_class as c
    join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
    where
        c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
        and n.nspname not in ('pg_catalog', 'information_schema', 'pgstream')
        and not exists (
            select from pg_catalog.pg_depend as d
            where
                d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
                and d.deptype = 'e'
        )
        and (
            %(publication)s::text is null
            or exists (
                select from pg_catalog.pg_publication_tables as p
                where
                    p.pubname = %(publication)s and p.schemaname = n.nspname
                    and p.tablename = c.relname
            )
        )
    union all
    select
        c.oid, c.relnamespace, c.relname, c.relkind, c.relpartbound,
        tree.root_oid, tree.oid, tree.depth + 1
    from tree
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relispartition
    where c.relkind in ('r', 'p')
)

select
    tree.oid::bigint as relation_id,
    n.nspname::text as namespace,
    pg_catalog.format('%%I.%%I', n.nspname, tree.relname) as name,
    tree.root_oid::bigint as root_id,
    root_namespace.nspname::text as root_namespace,
    root.relname::text as root_name,
    case when tree.relkind = 'p' then
        pg_catalog.format(' partition by %%s', pg_catalog.pg_get_partkeydef(tree.oid))
    else '' end as partition_by,
    case when tree.parent_oid is not null then
        pg_catalog.format(
            'partition of %%s %%s', tree.parent_oid::regclass,
            pg_catalog.pg_get_expr(tree.relpartbound, tree.oid)
        )
    end as partition_of,
    case when tree.parent_oid is not null then
        pg_catalog.format('%%I.%%I', parent_namespace.nspname, parent.relname)
    end as parent_name,
    array(
        -- the columns depend on the table then
        select a.attname::text
        from pg_catalog.pg_depend as d
        join pg_catalog.pg_attribute as a on a.attrelid = d.objid and a.attnum = d.objsubid
        where
            tree.relkind = 'p' and d.deptype = 'i' and d.refobjsubid = 0
            and d.classid = 'pg_catalog.pg_class'::regclass and d.objid = tree.oid
            and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = tree.oid
    ) as partition_needs
from tree
join pg_catalog.pg_namespace as n on n.oid = tree.relnamespace
join pg_catalog.pg_class as root on root.oid = tree.root_oid
join pg_catalog.pg_namespace as root_namespace on root_namespace.oid = root.relnamespace
left join pg_catalog.pg_class as parent on parent.oid = tree.parent_oid
left join pg_catalog.pg_namespace as parent_namespace on parent_namespace.oid = parent.relnamespace
order by tree.depth, tree.oid
