-- Add a stream, unless it is there. No row.
--   %(id)s  bigint
insert into pgstream.streams (id) values (%(id)s) on conflict (id) do nothing
