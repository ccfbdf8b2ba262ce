-- The session that reads one slot; no row when none does. pg_stat_activity shows the name of every
-- session to every role. wal_sender_timeout is that of the current session, in ms; 0: none.
--   %(slot)s  text  slot name
select
    s.active_pid,
    a.application_name,
    (
        select t.setting::bigint
        from pg_catalog.pg_settings as t
        where t.name = 'wal_sender_timeout'
    ) as timeout_ms
from pg_catalog.pg_replication_slots as s
left join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
where s.slot_name = %(slot)s and s.active_pid is not null
