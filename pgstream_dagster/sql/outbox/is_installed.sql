-- Whether the outbox is installed. One row.
select pg_catalog.to_regclass('pgstream.outbox_version') is not null as is_installed
