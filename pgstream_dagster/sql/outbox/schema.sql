-- The schema of the outbox; other parts of pgstream may have made it. No row.
create schema if not exists pgstream
