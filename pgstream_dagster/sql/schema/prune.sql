-- Remove what has landed, but for the last 1,000 rows: the lake has all of it. No row.
delete from pgstream.schema_log as l
where l.acked and l.version <= (select max(newest.version) - 1000 from pgstream.schema_log as newest)
