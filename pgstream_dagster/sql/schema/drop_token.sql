-- Remove the secret of `ddl_token`, if it is there. No row: it is not.
--   %(token)s  bigint  its large object
select pg_catalog.lo_unlink(m.oid)
from pg_catalog.pg_largeobject_metadata as m
where m.oid = %(token)s::bigint::pg_catalog.oid
