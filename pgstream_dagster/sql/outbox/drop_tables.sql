-- Remove the tables with all that depends on them. No row.
drop table pgstream.events, pgstream.subscriptions, pgstream.streams, pgstream.event_days,
pgstream.outbox_sinks, pgstream.outbox_version cascade
