-- Whether there is a schema pgstream: one row, or none.
select n.oid::bigint from pg_catalog.pg_namespace as n where n.nspname = 'pgstream'
