-- How far each sink has delivered the events. No row. Written by the maintenance; a day is not dropped
-- before all of them have delivered it. `delivered_before`: the sink has delivered the events of all
-- transactions that this snapshot sees, from the change log `log_id`; `pending_snapshot` becomes that
-- once the sink has passed `pending_lsn`.
create table if not exists pgstream.outbox_sinks (
    pipeline text,
    sink text,
    stream_id bigint,
    delivered_lsn pg_lsn,
    seen_at timestamptz,
    log_id text,
    generation integer,
    delivered_before pg_snapshot,
    pending_snapshot pg_snapshot,
    pending_lsn pg_lsn,
    primary key (pipeline, sink)
);

comment on table pgstream.outbox_sinks is
'Sinks that deliver events, and the position up to which they have delivered'
