-- Forget what another cluster or database has noted: this one was made from a dump of it. Its days are
-- closed again; its sinks have delivered nothing until they say so. One row.
with moved as (
    update pgstream.outbox_version as v
    set home = pgstream.home()
    where v.home is distinct from pgstream.home()
    returning v.version
),

days as (
    delete from pgstream.event_days
    where exists (select from moved)
    returning day
),

sinks as (
    update pgstream.outbox_sinks
    set
        delivered_lsn = '0/0', log_id = null, generation = null, delivered_before = null,
        pending_snapshot = null, pending_lsn = null
    where exists (select from moved)
    returning sink
)

select (select count(*) from days) as days, (select count(*) from sinks) as sinks
