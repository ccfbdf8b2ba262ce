-- Note how far the sinks of a pipeline have delivered, and forget those that it has no more. One row.
--   %(pipeline)s    text
--   %(log_id)s      text      of the change log that they read
--   %(sinks)s       text[]
--   %(stream_ids)s  bigint[]  of each sink
--   %(lsns)s        pg_lsn[]  everything that committed before has been delivered; 0/0: nothing yet
--   %(has_all)s     boolean[] whether nothing of that is a dead letter
with given as (
    select n.sink, n.stream_id, n.delivered_lsn, n.has_all
    from
        rows from (
            pg_catalog.unnest(%(sinks)s::text[]),
            pg_catalog.unnest(%(stream_ids)s::bigint[]),
            pg_catalog.unnest(%(lsns)s::pg_lsn[]),
            pg_catalog.unnest(%(has_all)s::boolean[])
        ) as n (sink, stream_id, delivered_lsn, has_all)
),

forgotten as (
    delete from pgstream.outbox_sinks as s
    where
        s.pipeline = %(pipeline)s and s.sink not in (select g.sink from given as g)
        -- Before its subscriptions are known, a sink stands for all of them.
        and pg_catalog.split_part(s.sink, '.', 1) not in (select g.sink from given as g)
    returning s.sink
),

-- What was noted of another stream says nothing of this one.
merged as (
    select
        g.sink, g.stream_id, g.delivered_lsn,
        case when g.delivered_lsn > '0/0' then %(log_id)s else s.log_id end as log_id,
        case
            when g.has_all and s.log_id = %(log_id)s and s.pending_lsn <= g.delivered_lsn
                then s.pending_snapshot
            else s.delivered_before
        end as delivered_before,
        -- A snapshot is kept until it is delivered.
        g.delivered_lsn = '0/0' or (
            s.log_id is not distinct from %(log_id)s and s.pending_lsn is not null
            and not (g.has_all and s.pending_lsn <= g.delivered_lsn)
        ) as is_pending,
        s.pending_snapshot, s.pending_lsn
    from given as g
    left join pgstream.outbox_sinks as s
        on s.pipeline = %(pipeline)s and s.sink = g.sink and s.stream_id = g.stream_id
),

noted as (
    insert into pgstream.outbox_sinks (
        pipeline, sink, stream_id, delivered_lsn, seen_at, log_id, delivered_before,
        pending_snapshot, pending_lsn
    )
    select
        %(pipeline)s, m.sink, m.stream_id, m.delivered_lsn, pg_catalog.clock_timestamp(), m.log_id,
        m.delivered_before,
        case
            when m.is_pending then m.pending_snapshot else pg_catalog.pg_current_snapshot()
        end,
        case when m.is_pending then m.pending_lsn else pg_catalog.pg_current_wal_insert_lsn() end
    from merged as m
    on conflict (pipeline, sink) do update
    set
        stream_id = excluded.stream_id,
        delivered_lsn = excluded.delivered_lsn,
        seen_at = excluded.seen_at,
        log_id = excluded.log_id,
        delivered_before = excluded.delivered_before,
        pending_snapshot = excluded.pending_snapshot,
        pending_lsn = excluded.pending_lsn
    returning sink
)

select (select count(*) from noted) as noted, (select count(*) from forgotten) as forgotten
