-- Note how far the sinks of a pipeline have delivered, and forget those that it has no more. One row.
--   %(pipeline)s     text
--   %(log_id)s       text       of the change log that they read
--   %(sinks)s        text[]
--   %(stream_ids)s   bigint[]   of each sink
--   %(generations)s  integer[]  how often a person has let it begin, with the first time
--   %(lsns)s         pg_lsn[]   everything that committed before has been delivered; 0/0: nothing yet
--   %(has_all)s      boolean[]  whether nothing of that is a dead letter
with given as (
    select
        n.sink, n.stream_id, n.generation, n.has_all,
        -- A position that the server has yet to reach is from before it was restored.
        case
            when n.delivered_lsn > pg_catalog.pg_current_wal_insert_lsn() then '0/0'
            else n.delivered_lsn
        end as delivered_lsn
    from
        rows from (
            pg_catalog.unnest(%(sinks)s::text[]),
            pg_catalog.unnest(%(stream_ids)s::bigint[]),
            pg_catalog.unnest(%(generations)s::integer[]),
            pg_catalog.unnest(%(lsns)s::pg_lsn[]),
            pg_catalog.unnest(%(has_all)s::boolean[])
        ) as n (sink, stream_id, generation, delivered_lsn, has_all)
),

forgotten as (
    delete from pgstream.outbox_sinks as s
    where
        s.pipeline = %(pipeline)s and s.sink not in (select g.sink from given as g)
        -- Before its subscriptions are known, a sink stands for all of them.
        and pg_catalog.split_part(s.sink, '.', 1) not in (select g.sink from given as g)
    returning s.sink
),

-- What was noted of another stream, or before a reset, says nothing. A log that its sink has not begun
-- to read changes nothing of what the former one has noted.
known as (
    select
        g.sink, g.stream_id, g.generation, g.delivered_lsn, s.log_id,
        s.delivered_before, s.pending_snapshot, s.pending_lsn,
        g.delivered_lsn > '0/0' as has_begun,
        s.log_id is not distinct from %(log_id)s as is_same_log,
        coalesce(
            g.has_all and s.log_id = %(log_id)s and s.pending_lsn <= g.delivered_lsn, false
        ) as is_passed
    from given as g
    left join pgstream.outbox_sinks as s
        on
            s.pipeline = %(pipeline)s and s.sink = g.sink and s.stream_id = g.stream_id
            and g.generation = case when s.log_id = %(log_id)s then s.generation else 1 end
),

merged as (
    select
        k.sink, k.stream_id, k.generation, k.delivered_lsn,
        case when k.has_begun then %(log_id)s else k.log_id end as log_id,
        case when k.is_passed then k.pending_snapshot else k.delivered_before end
            as delivered_before,
        -- A snapshot is kept until it is delivered.
        not k.has_begun or (k.is_same_log and k.pending_lsn is not null and not k.is_passed)
            as is_pending,
        k.pending_snapshot, k.pending_lsn
    from known as k
),

noted as (
    insert into pgstream.outbox_sinks (
        pipeline, sink, stream_id, delivered_lsn, seen_at, log_id, generation, delivered_before,
        pending_snapshot, pending_lsn
    )
    select
        %(pipeline)s, m.sink, m.stream_id, m.delivered_lsn, pg_catalog.clock_timestamp(), m.log_id,
        m.generation, m.delivered_before,
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
        generation = excluded.generation,
        delivered_before = excluded.delivered_before,
        pending_snapshot = excluded.pending_snapshot,
        pending_lsn = excluded.pending_lsn
    returning sink
)

select (select count(*) from noted) as noted, (select count(*) from forgotten) as forgotten
