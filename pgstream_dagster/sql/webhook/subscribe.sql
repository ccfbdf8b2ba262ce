-- Add a subscription, or give an existing one these event types; either way it is enabled. One row:
-- whether it is new.
--   %(url)s          text    where to post
--   %(namespace)s    text    schema; '' for all
--   %(table)s        text    table; '' for all
--   %(event_types)s  text[]  pgstream's letters; null for all
insert into pgstream.webhook_subscriptions as s (url, schema_name, table_name, event_types)
values (%(url)s, %(namespace)s, %(table)s, %(event_types)s)
on conflict (url, schema_name, table_name) do update
set event_types = excluded.event_types, disabled_at = null, disabled_reason = null
returning s.xmax = 0 as is_new
