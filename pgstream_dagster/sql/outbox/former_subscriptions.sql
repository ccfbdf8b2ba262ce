-- The subscriptions of postgres-stream, as objects; no row: there are none.
select pg_catalog.to_jsonb(s.*)
from pgstream_subscriptions.subscriptions as s
order by s.id
