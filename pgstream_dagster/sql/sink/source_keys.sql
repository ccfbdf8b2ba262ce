-- What is made before the rows arrive: primary keys, and the index that is the replica identity.
-- `needs` are the columns of each.
--   %(relation_ids)s  bigint[]
select
    c.conrelid::bigint as relation_id,
    pg_catalog.format(
        'alter table %%s add constraint %%I %%s',
        c.conrelid::regclass, c.conname, pg_catalog.pg_get_constraintdef(c.oid)
    ) as statement,
    array(
        select a.attname::text from pg_catalog.pg_attribute as a
        where a.attrelid = c.conrelid and a.attnum = any(c.conkey)
    ) as needs
from pg_catalog.pg_constraint as c
where
    c.conrelid = any(%(relation_ids)s::bigint[]::oid[]) and c.contype = 'p'
    and c.conparentid = 0
union all
select
    i.indrelid::bigint,
    pg_catalog.pg_get_indexdef(i.indexrelid),
    array(
        select a.attname::text from pg_catalog.pg_attribute as a
        where a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    )
from pg_catalog.pg_index as i
where
    i.indrelid = any(%(relation_ids)s::bigint[]::oid[]) and i.indisreplident
    and not i.indisprimary
    and not exists (
        select from pg_catalog.pg_constraint as c
        where c.conindid = i.indexrelid and c.contype in ('p', 'u', 'x')
    )
