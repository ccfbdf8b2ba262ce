-- Days of the rows in the default partition, as far as a partition can be named after them; no row:
-- it has none before that time.
--   %(before)s  timestamptz  only rows before
--   %(limit)s   integer      days at most, the oldest first
select distinct (d.created_at at time zone 'UTC')::date as day
from only pgstream.events_default as d
where d.created_at < %(before)s and d.created_at >= '1000-01-01 00:00:00+00'
order by day
limit %(limit)s
