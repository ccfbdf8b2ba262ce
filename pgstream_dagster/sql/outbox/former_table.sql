-- Where postgres-stream has its subscriptions. One row: 'new' for a schema of their own, 'old' for
-- the schema of its events, null for neither.
select
    case
        when pg_catalog.to_regclass('pgstream_subscriptions.subscriptions') is not null then 'new'
        when
            pg_catalog.to_regclass('pgstream.subscriptions') is not null
            and pg_catalog.to_regclass('pgstream.outbox_version') is null
            then 'old'
    end as place
