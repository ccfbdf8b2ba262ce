-- Export the snapshot of this transaction; the name others import, and when it was taken (us).
select pg_catalog.pg_export_snapshot(),
       (extract(epoch from pg_catalog.now()) * 1000000)::pg_catalog.int8
