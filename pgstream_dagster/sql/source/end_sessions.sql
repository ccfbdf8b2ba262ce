-- Ends sessions of ours by their name; one row per session.
--   %(application_name)s  text  a name that only these sessions have
select pg_catalog.pg_terminate_backend(pid)
from pg_catalog.pg_stat_activity
where application_name = %(application_name)s
    and usename = current_user
    and pid <> pg_catalog.pg_backend_pid()
