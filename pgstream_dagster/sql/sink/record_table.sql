-- Records the version that a table of the target has; one row always.
--   %(pipeline)s     text
--   %(sink)s         text
--   %(epoch)s        bigint   in which the relation has its oid
--   %(relation_id)s  bigint   oid on the source
--   %(version)s      json
--   %(since)s        bigint[]  position of the version's first change
--   %(is_complete)s  boolean  whether its indexes and constraints are made
--   %(is_made)s      boolean  whether the sink has made the table
--   %(table_oid)s    bigint   of the target's table; null: not known
insert into pgstream.sink_tables (
    pipeline, sink, epoch, relation_id, version, since, is_complete, is_made, table_oid
)
values (
    %(pipeline)s, %(sink)s, %(epoch)s, %(relation_id)s, %(version)s, %(since)s::bigint[],
    %(is_complete)s, %(is_made)s, %(table_oid)s
)
on conflict (pipeline, sink, epoch, relation_id) do update
set
    version = excluded.version, since = excluded.since, is_complete = excluded.is_complete,
    is_made = excluded.is_made, table_oid = excluded.table_oid
returning true
