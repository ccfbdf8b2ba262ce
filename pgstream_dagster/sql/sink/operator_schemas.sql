-- The search path that finds the equality of every type: the schemas with such an operator, quoted.
-- pg_catalog always comes first. Null when there is no other.
select pg_catalog.string_agg(distinct pg_catalog.quote_ident(n.nspname), ', ')
from pg_catalog.pg_operator as o
join pg_catalog.pg_namespace as n on n.oid = o.oprnamespace
where o.oprname = '=' and n.nspname <> 'pg_catalog'
