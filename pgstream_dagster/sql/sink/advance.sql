-- Stores the cursor of a batch, in the transaction of its changes; one row always.
--   %(pipeline)s  text
--   %(sink)s      text
--   %(cursor)s    text
insert into pgstream.sink_progress as p (pipeline, sink, cursor)
values (%(pipeline)s, %(sink)s, %(cursor)s)
on conflict (pipeline, sink) do update
set cursor = excluded.cursor, committed_at = pg_catalog.now()
returning true
