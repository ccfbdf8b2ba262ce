-- The full id of this transaction: it gets one although it changes nothing. One row.
select pg_catalog.pg_current_xact_id()::text::bigint
