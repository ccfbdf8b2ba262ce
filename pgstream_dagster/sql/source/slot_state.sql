-- The state of one slot; no row when it does not exist.
-- Columns that only newer servers have are read through jsonb, so one text works from 15 to 18.
--   %(slot)s  text  slot name
select
    s.plugin::text as plugin,
    s.slot_type as kind,
    s.database::text as database,
    s.database = pg_catalog.current_database() as is_in_this_database,
    s.temporary as is_temporary,
    s.active_pid,
    case when s.active_pid is null then extract(
        epoch from pg_catalog.clock_timestamp() - (newer.facts ->> 'inactive_since')::timestamptz
    ) end::float8 as inactive_seconds,
    s.restart_lsn::text as restart_lsn,
    s.confirmed_flush_lsn::text as confirmed_lsn,
    s.wal_status,
    s.safe_wal_size as safe_wal_bytes,
    coalesce(
        newer.facts ->> 'invalidation_reason',
        case when (newer.facts ->> 'conflicting')::boolean then 'conflict with recovery' end
    ) as invalidation_reason,
    coalesce((newer.facts ->> 'failover')::boolean, false) as is_failover,
    coalesce((newer.facts ->> 'synced')::boolean, false)
        and pg_catalog.pg_is_in_recovery() as is_standby_copy,
    case
        when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
        else pg_catalog.pg_current_wal_flush_lsn()
    end::text as wal_lsn
from pg_catalog.pg_replication_slots as s
cross join lateral (select pg_catalog.to_jsonb(s) as facts) as newer
where s.slot_name = %(slot)s
