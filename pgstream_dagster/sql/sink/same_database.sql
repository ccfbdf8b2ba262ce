-- What identifies a database: the server's system identifier, and the database's oid.
select c.system_identifier, d.oid::bigint
from pg_catalog.pg_control_system() as c
cross join pg_catalog.pg_database as d
where d.datname = pg_catalog.current_database()
