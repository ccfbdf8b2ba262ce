-- Forget a day whose partition is dropped. One row.
--   %(day)s  date
with forgotten as (
    delete from pgstream.event_days as d
    where d.day = %(day)s
    returning d.day
)

select count(*) from forgotten
