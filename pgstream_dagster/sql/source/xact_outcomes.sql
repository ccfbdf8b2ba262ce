-- How transactions ended on this server.
--   %(xids)s  bigint[]  their full ids
-- One row per id: committed, aborted, 'in progress', future (not begun yet), or null (too old: the
-- server no longer knows).
select
    x.xid,
    case
        when x.xid::text::xid8 >= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) then
            'future'
        else pg_catalog.pg_xact_status(x.xid::text::xid8)
    end
from unnest(%(xids)s::bigint[]) as x (xid)
