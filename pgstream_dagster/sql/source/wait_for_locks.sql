-- How long statements of this session wait for a lock from now on.
--   %(milliseconds)s  int
select pg_catalog.set_config('lock_timeout', %(milliseconds)s::text, false)
