-- Names of generated functions that no subscription needs; no row: there are none.
select u.function_name
from pgstream.unused_functions() as u
order by 1
