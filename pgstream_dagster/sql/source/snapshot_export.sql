-- Export the snapshot of this transaction; its name for other sessions, and when it was taken (us).
select pg_catalog.pg_export_snapshot(),
       (extract(epoch from pg_catalog.now()) * 1000000)::pg_catalog.int8
