-- The functions with their arguments; no row: there are none.
--   %(functions)s  text[]  their names
select p.oid::pg_catalog.regprocedure::text
from pg_catalog.pg_proc as p
inner join pg_catalog.pg_namespace as n on p.pronamespace = n.oid
where n.nspname = 'pgstream' and p.proname = any(%(functions)s)
