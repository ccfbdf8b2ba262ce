-- Wait, at most 5 s, until no other session installs or removes the event triggers; held until the end
-- of the transaction, whose later waits for locks are as short. One row.
select
    pg_catalog.set_config('lock_timeout', '5s', true),
    pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgstream schema install', 0))
