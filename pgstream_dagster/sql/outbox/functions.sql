-- The functions of the outbox, with their arguments; no row: there are none.
--   %(names)s  text[]  of those that are not generated
select p.oid::pg_catalog.regprocedure::text
from pg_catalog.pg_proc as p
where
    p.pronamespace = 'pgstream'::pg_catalog.regnamespace
    and (p.proname = any(%(names)s) or p.proname ~ '^capture_[0-9]')
