-- The cluster and the database: positions and transaction ids of another mean nothing here. No row.
create or replace function pgstream.home() returns text
language sql stable
set search_path = pg_catalog, pg_temp
return (
    select c.system_identifier || '/' || d.oid
    from pg_control_system() as c cross join pg_database as d
    where d.datname = current_database()
)
