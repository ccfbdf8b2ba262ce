-- A table of schema pgstream that is no partition. One row: whether it exists, and its comment.
--   %(name)s  text  of the table
select
    count(c.oid) > 0 as is_there,
    max(pg_catalog.obj_description(c.oid, 'pg_class')) as description
from pg_catalog.pg_class as c
inner join pg_catalog.pg_namespace as n on c.relnamespace = n.oid
where n.nspname = 'pgstream' and c.relname = %(name)s
