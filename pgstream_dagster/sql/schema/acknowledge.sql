-- Mark versions of `pgstream.schema_log` as landed in the lake. No row.
--   %(versions)s  bigint[]  versions
update pgstream.schema_log set acked = true
where version = any(%(versions)s::bigint[]) and not acked
