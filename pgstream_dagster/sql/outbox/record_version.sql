-- Record the version of the objects. No row.
--   %(version)s  integer  of the objects
insert into pgstream.outbox_version (version) values (%(version)s)
on conflict (is_only_row) do update set version = excluded.version
