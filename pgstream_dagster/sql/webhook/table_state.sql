-- Whether the table of subscriptions is there, with our columns. One row.
select count(*) = 2 as is_ready
from pg_catalog.pg_attribute as a
where
    a.attrelid = pg_catalog.to_regclass('pgstream.webhook_subscriptions')
    and a.attname in ('disabled_at', 'disabled_reason')
    and not a.attisdropped
