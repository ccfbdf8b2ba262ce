-- Days of the rows in the default partition; no row: it has none before that time.
--   %(before)s  timestamptz  only rows before
--   %(limit)s   integer      days at most, the oldest first
select distinct (d.created_at at time zone 'UTC')::date as day
from only pgstream.events_default as d
where d.created_at < %(before)s
order by day
limit %(limit)s
