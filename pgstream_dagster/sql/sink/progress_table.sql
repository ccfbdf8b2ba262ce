-- Makes the table of how far each sink has delivered, written in the transaction of the changes.
-- `refused` are the changes of the last batch that the target did not accept: [[event id, reason]].
create table if not exists pgstream.sink_progress (
    pipeline text not null,
    sink text not null,
    cursor text not null,
    refused json not null,
    committed_at timestamptz not null default pg_catalog.now(),
    primary key (pipeline, sink)
)
