-- When each day of events was complete; no row: none is over.
select d.day, d.closed_lsn::text
from pgstream.event_days as d
