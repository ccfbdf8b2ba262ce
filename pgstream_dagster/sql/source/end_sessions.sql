-- Ends sessions of ours by their name; a row for each.
--   %(application_name)s  text  what only these sessions are called
select pg_catalog.pg_terminate_backend(pid)
from pg_catalog.pg_stat_activity
where application_name = %(application_name)s
    and usename = current_user
    and pid <> pg_catalog.pg_backend_pid()
