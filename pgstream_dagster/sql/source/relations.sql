-- Every relation of users that a pattern may match, with the topmost relation of its partition tree
-- (itself for anything else). Without the catalogs and other sessions' temporary relations.
with recursive tree as (
    select c.oid, c.oid as root
    from pg_catalog.pg_class as c
    where not c.relispartition
    union all
    select i.inhrelid, tree.root
    from tree
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relispartition
)

select
    c.oid::bigint as relation_id,
    n.nspname::text as namespace,
    c.relname::text as name,
    c.relkind::text as kind,
    c.relpersistence::text as persistence,
    tree.root::bigint as root_id,
    pg_catalog.format('%I.%I', n.nspname, c.relname) as sql_name,
    pg_catalog.pg_has_role(c.relowner, 'USAGE') as is_owned
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
join tree on tree.oid = c.oid
where
    c.relkind in ('r', 'p', 'v', 'm', 'f')
    and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
    and (n.nspname not like 'pg\_temp\_%' or n.oid = pg_catalog.pg_my_temp_schema())
order by n.nspname, c.relname
