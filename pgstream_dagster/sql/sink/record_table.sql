-- Records the version that a table of the target has; one row always.
--   %(pipeline)s     text
--   %(sink)s         text
--   %(relation_id)s  bigint   oid on the source
--   %(version)s      json
--   %(is_complete)s  boolean  whether its indexes and constraints are made
insert into pgstream.sink_tables (pipeline, sink, relation_id, version, is_complete)
values (%(pipeline)s, %(sink)s, %(relation_id)s, %(version)s, %(is_complete)s)
on conflict (pipeline, sink, relation_id) do update
set version = excluded.version, is_complete = excluded.is_complete
returning true
