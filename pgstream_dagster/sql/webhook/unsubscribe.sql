-- Remove a subscription; no row if there is none.
--   %(url)s        text  where it posts
--   %(namespace)s  text  schema; '' for all
--   %(table)s      text  table; '' for all
delete from pgstream.webhook_subscriptions as s
where s.url = %(url)s and s.schema_name = %(namespace)s and s.table_name = %(table)s
returning s.url
