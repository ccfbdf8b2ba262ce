-- Note that a day is over: transactions from the next id on have no events of it. One row.
--   %(day)s  date
with noted as (
    insert into pgstream.event_days (day, closing_xid)
    values (%(day)s, pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()))
    on conflict (day) do nothing
    returning day
)

select count(*) from noted
