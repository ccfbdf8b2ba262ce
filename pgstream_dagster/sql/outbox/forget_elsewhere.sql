-- Forget days and sinks that another cluster or database has noted: this one was made from a dump of
-- it, and positions and transaction ids of there mean nothing here. One row.
with here as (
    select c.system_identifier || '/' || d.oid as home
    from pg_catalog.pg_control_system() as c
    cross join pg_catalog.pg_database as d
    where d.datname = pg_catalog.current_database()
),

moved as (
    update pgstream.outbox_version as v
    set home = h.home
    from here as h
    where v.home is distinct from h.home
    returning v.version
),

days as (
    delete from pgstream.event_days
    where exists (select from moved)
    returning day
),

sinks as (
    delete from pgstream.outbox_sinks
    where exists (select from moved)
    returning sink
)

select (select count(*) from days) as days, (select count(*) from sinks) as sinks
