-- How many rows the default partition has. One row.
select count(*)
from only pgstream.events_default
