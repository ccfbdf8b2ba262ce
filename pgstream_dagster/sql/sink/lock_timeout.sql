-- How long a statement of this session waits for a lock.
--   %(lock_timeout)s  text
select pg_catalog.set_config('lock_timeout', %(lock_timeout)s, false)
