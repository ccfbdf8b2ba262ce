-- Every published table: oid, name, and the columns of its key in key order (none: no key).
select c.oid::int8, c.oid::regclass::text, array(
    select a.attname::text
    from pg_catalog.pg_index i
    cross join unnest(i.indkey) with ordinality k (attnum, at)
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
    where i.indrelid = c.oid and case c.relreplident
        when 'i' then i.indisreplident
        when 'n' then false
        else i.indisprimary
    end
    order by k.at
)
from pg_catalog.pg_publication_tables p
join pg_catalog.pg_namespace n on n.nspname = p.schemaname
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
order by c.oid
