-- The role that owns the events, as a quoted identifier. One row.
select pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)::text)
from pg_catalog.pg_class as c
where c.oid = 'pgstream.events'::pg_catalog.regclass
