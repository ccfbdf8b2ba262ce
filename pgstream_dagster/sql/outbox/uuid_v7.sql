-- A UUID of version 7: the time in milliseconds, then random bits. No row. For Postgres 18, which
-- has one of its own.
create or replace function pgstream.uuid_v7() returns uuid
language sql volatile parallel safe
return pg_catalog.uuidv7()
