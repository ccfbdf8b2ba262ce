-- Makes the table of how far each sink has delivered, written in the transaction of the changes.
create table if not exists pgstream.sink_progress (
    pipeline text not null,
    sink text not null,
    cursor text not null,
    committed_at timestamptz not null default pg_catalog.now(),
    primary key (pipeline, sink)
)
