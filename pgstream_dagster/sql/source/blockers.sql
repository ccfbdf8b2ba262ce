-- The server processes that a server process waits for now.
--   %(pid)s  int  the process that waits
-- No row: it does not wait.
select unnest(pg_catalog.pg_blocking_pids(%(pid)s))
