-- Takes the right to write for a sink, until the session ends; fails with 55P03 (lock_timeout) when
-- another session keeps it. A session of a process that was killed is gone a moment later.
--   %(name)s  text  pipeline and sink
select pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended(%(name)s, 0))
