-- All subscriptions; no row: there is none.
select s.url, s.schema_name, s.table_name, s.event_types, s.disabled_at, s.disabled_reason
from pgstream.webhook_subscriptions as s
order by s.url, s.schema_name, s.table_name
