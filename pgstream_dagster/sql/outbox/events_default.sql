-- Where an event goes whose day has no partition, so that no write fails for want of one. No row.
create table if not exists pgstream.events_default partition of pgstream.events default
