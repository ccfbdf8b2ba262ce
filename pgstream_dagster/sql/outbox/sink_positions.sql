-- How far each sink has delivered; no row: none is registered.
select s.pipeline, s.sink, s.delivered_lsn::text
from pgstream.outbox_sinks as s
order by s.pipeline, s.sink
