-- The subscriptions of postgres-stream before they had a schema of their own, as objects; no row:
-- there are none.
select pg_catalog.to_jsonb(s.*)
from pgstream.subscriptions as s
order by s.id
