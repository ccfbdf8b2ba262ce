-- Disable a subscription, unless it is; no row if it is, or is gone.
--   %(url)s        text  where it posts
--   %(namespace)s  text  schema; '' for all
--   %(table)s      text  table; '' for all
--   %(reason)s     text  why
update pgstream.webhook_subscriptions as s
set disabled_at = pg_catalog.now(), disabled_reason = %(reason)s
where
    s.url = %(url)s and s.schema_name = %(namespace)s and s.table_name = %(table)s
    and s.disabled_at is null
returning s.url
