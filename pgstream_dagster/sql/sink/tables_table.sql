-- Makes the table of the relations that each sink writes to: the version that the target's table
-- has, since which change (epoch, commit LSN, ordinal), whether its indexes and constraints are made,
-- whether the sink has made the table, and the OID that the target's table had.
create table if not exists pgstream.sink_tables (
    pipeline text not null,
    sink text not null,
    epoch bigint not null,
    relation_id bigint not null,
    version json not null,
    since bigint[] not null,
    is_complete boolean not null,
    is_made boolean not null,
    table_oid bigint,
    primary key (pipeline, sink, epoch, relation_id)
)
