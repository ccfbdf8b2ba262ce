-- Record the version of the objects. No row.
--   %(version)s  integer  of the objects
insert into pgstream.outbox_version as v (version, home) values (%(version)s, pgstream.home())
on conflict (is_only_row) do update
set version = excluded.version, home = coalesce(v.home, excluded.home)
