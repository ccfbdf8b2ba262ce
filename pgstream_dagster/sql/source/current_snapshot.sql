-- The snapshot of the next statement: xmin:xmax:running, running xids separated by commas. One row.
select pg_catalog.pg_current_snapshot()::text
