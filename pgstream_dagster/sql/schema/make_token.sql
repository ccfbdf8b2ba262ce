-- Make the secret of `ddl_token`. One row: its large object, and its digest.
with secret as (
    select pg_catalog.gen_random_uuid()::text as token
)

select
    pg_catalog.lo_from_bytea(0, pg_catalog.convert_to(s.token, 'UTF8'))::bigint,
    pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(s.token, 'UTF8')), 'hex')
from secret as s
