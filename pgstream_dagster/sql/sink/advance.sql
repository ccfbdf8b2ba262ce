-- Stores the cursor of a batch, in the transaction of its changes; one row always.
--   %(pipeline)s  text
--   %(sink)s      text
--   %(cursor)s    text
--   %(refused)s   json  the batch's changes that were not accepted
insert into pgstream.sink_progress as p (pipeline, sink, cursor, refused)
values (%(pipeline)s, %(sink)s, %(cursor)s, %(refused)s)
on conflict (pipeline, sink) do update
set cursor = excluded.cursor, refused = excluded.refused, committed_at = pg_catalog.now()
returning true
