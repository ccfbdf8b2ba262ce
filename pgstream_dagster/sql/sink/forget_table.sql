-- Forgets the version of a table that another relation has now.
--   %(pipeline)s     text
--   %(sink)s         text
--   %(epoch)s        bigint
--   %(relation_id)s  bigint  oid on the source in that epoch
delete from pgstream.sink_tables
where
    pipeline = %(pipeline)s and sink = %(sink)s
    and epoch = %(epoch)s and relation_id = %(relation_id)s
returning true
