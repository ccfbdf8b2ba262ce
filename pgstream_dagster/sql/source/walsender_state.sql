-- The session that reads one slot; no row when none does.
-- `reply_time` is the clock of the reader, so it is only good for telling whether it moves; it and
-- `application_name` are null when our role may not see them (pg_stat_activity hides other roles,
-- pg_stat_replication all but members of pg_read_all_stats).
--   %(slot)s  text  slot name
select
    s.active_pid,
    a.application_name,
    r.reply_time::text as reply_time
from pg_catalog.pg_replication_slots as s
left join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
left join pg_catalog.pg_stat_replication as r on r.pid = s.active_pid
where s.slot_name = %(slot)s and s.active_pid is not null
