-- When a day of events was complete. No row. `closing_xid`: transactions before it may have written
-- events of the day; `closed_lsn`: all of these have ended, and their commits are before it.
create table if not exists pgstream.event_days (
    day date primary key,
    closing_xid xid8 not null,
    closed_lsn pg_lsn,
    closed_at timestamptz
);

comment on table pgstream.event_days is
'Days of events that are over, for pgstream outbox maintain'
