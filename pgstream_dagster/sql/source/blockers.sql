-- Which server processes one waits for now.
--   %(pid)s  int  the one that waits
-- No row: it waits for none.
select unnest(pg_catalog.pg_blocking_pids(%(pid)s))
