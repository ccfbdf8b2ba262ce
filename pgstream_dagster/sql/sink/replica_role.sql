-- Turns triggers and foreign keys off for this session; fails with 42501 where the role may not.
select pg_catalog.set_config('session_replication_role', 'replica', false)
