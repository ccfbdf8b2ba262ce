-- The relations that a sink writes to, with the version that the target's table has.
--   %(pipeline)s  text
--   %(sink)s      text
select version::text, since, is_complete, is_made, table_oid
from pgstream.sink_tables
where pipeline = %(pipeline)s and sink = %(sink)s
