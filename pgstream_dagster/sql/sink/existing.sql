-- What the target has: namespaces, relations (tables, sequences), those that are partitioned, types,
-- indexes and constraints as `table/name`, and labels of enums as `type/label`; names of tables and
-- types are qualified and quoted.
select 'namespace' as kind, n.nspname::text as name
from pg_catalog.pg_namespace as n
union all
select 'relation', pg_catalog.format('%I.%I', n.nspname, c.relname)
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
union all
select 'partitioned', pg_catalog.format('%I.%I', n.nspname, c.relname)
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.relkind = 'p'
union all
select 'type', pg_catalog.format('%I.%I', n.nspname, t.typname)
from pg_catalog.pg_type as t
join pg_catalog.pg_namespace as n on n.oid = t.typnamespace
where n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
union all
select 'constraint', pg_catalog.format('%I.%I/%s', n.nspname, r.relname, c.conname)
from pg_catalog.pg_constraint as c
join pg_catalog.pg_class as r on r.oid = c.conrelid
join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
union all
select 'constraint', pg_catalog.format('%I.%I/%s', n.nspname, r.relname, c.relname)
from pg_catalog.pg_index as i
join pg_catalog.pg_class as c on c.oid = i.indexrelid
join pg_catalog.pg_class as r on r.oid = i.indrelid
join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
union all
select 'label', pg_catalog.format('%I.%I/%s', n.nspname, t.typname, e.enumlabel)
from pg_catalog.pg_enum as e
join pg_catalog.pg_type as t on t.oid = e.enumtypid
join pg_catalog.pg_namespace as n on n.oid = t.typnamespace
