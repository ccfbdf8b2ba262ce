-- Wait until no other session installs, upgrades or removes the outbox; held until the end of the
-- transaction. One row.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgstream outbox install', 0))
