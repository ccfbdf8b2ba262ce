-- What the sinks of a pipeline have delivered, as a snapshot; no row: none has noted it,
-- or in another cluster.
--   %(pipeline)s  text
select s.sink, s.stream_id, s.delivered_before::text
from pgstream.outbox_sinks as s
inner join pgstream.outbox_version as v on v.home = pgstream.home()
where s.pipeline = %(pipeline)s and s.delivered_before is not null
