-- The partitions of the events, the default one too. Bounds are in the session's time zone.
select
    c.relname as name,
    pg_catalog.pg_get_expr(c.relpartbound, c.oid) as bounds,
    pg_catalog.pg_total_relation_size(c.oid) as size_bytes
from pg_catalog.pg_inherits as i
inner join pg_catalog.pg_class as c on i.inhrelid = c.oid
where i.inhparent = 'pgstream.events'::pg_catalog.regclass
order by c.relname
