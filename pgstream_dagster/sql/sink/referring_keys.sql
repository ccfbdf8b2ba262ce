-- The foreign keys of the target that refer to a table: all of other tables, or those that need one
-- of its keys.
--   %(table_oid)s  bigint
--   %(key_name)s   text  a primary key or unique constraint of the table; null: all
select
    n.nspname::text as namespace,
    c.relname::text as relation,
    k.conname::text as name
from pg_catalog.pg_constraint as k
join pg_catalog.pg_class as c on c.oid = k.conrelid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where
    k.contype = 'f' and k.confrelid = %(table_oid)s::bigint::oid and k.conparentid = 0
    and case
        when %(key_name)s::text is null then k.conrelid <> k.confrelid
        else k.conindid in (
            select u.conindid from pg_catalog.pg_constraint as u
            where u.conrelid = k.confrelid and u.conname = %(key_name)s and u.contype in ('p', 'u')
        )
    end
order by n.nspname, c.relname, k.conname
