-- Note how far the sinks of a pipeline have delivered, and forget those that it has no more. One row.
--   %(pipeline)s    text
--   %(sinks)s       text[]
--   %(stream_ids)s  bigint[]  of each sink
--   %(lsns)s        pg_lsn[]  everything that committed before has been delivered
with given as (
    select n.sink, n.stream_id, n.delivered_lsn
    from
        rows from (
            pg_catalog.unnest(%(sinks)s::text[]),
            pg_catalog.unnest(%(stream_ids)s::bigint[]),
            pg_catalog.unnest(%(lsns)s::pg_lsn[])
        ) as n (sink, stream_id, delivered_lsn)
),

forgotten as (
    delete from pgstream.outbox_sinks as s
    where s.pipeline = %(pipeline)s and s.sink not in (select g.sink from given as g)
    returning s.sink
),

noted as (
    insert into pgstream.outbox_sinks as s (pipeline, sink, stream_id, delivered_lsn, seen_at)
    select %(pipeline)s, g.sink, g.stream_id, g.delivered_lsn, pg_catalog.clock_timestamp()
    from given as g
    on conflict (pipeline, sink) do update
    set
        stream_id = excluded.stream_id,
        delivered_lsn = excluded.delivered_lsn,
        seen_at = excluded.seen_at
    returning s.sink
)

select (select count(*) from noted) as noted, (select count(*) from forgotten) as forgotten
