-- The cursor of the last batch that a sink has committed; no row before the first one.
--   %(pipeline)s  text
--   %(sink)s      text
select cursor
from pgstream.sink_progress
where pipeline = %(pipeline)s and sink = %(sink)s
