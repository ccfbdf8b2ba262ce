-- Which sinks write to a table of the target, the current one aside. No row: none does.
--   %(pipeline)s   text
--   %(sink)s       text
--   %(table_oid)s  bigint
select s.sink, s.pipeline
from pgstream.sink_tables as s
where
    s.table_oid = %(table_oid)s
    and (s.pipeline, s.sink) is distinct from (%(pipeline)s::text, %(sink)s::text)
order by s.pipeline, s.sink
limit 1
