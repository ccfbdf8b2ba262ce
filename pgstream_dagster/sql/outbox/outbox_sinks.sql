-- How far each sink has delivered the events. No row. Written by the delivery; a day is not dropped
-- before all of them have delivered it.
create table if not exists pgstream.outbox_sinks (
    pipeline text,
    sink text,
    stream_id bigint,
    delivered_lsn pg_lsn,
    seen_at timestamptz,
    primary key (pipeline, sink)
);

comment on table pgstream.outbox_sinks is
'Sinks that deliver events, and the position up to which they have delivered'
