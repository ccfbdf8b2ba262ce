-- The source's clock, by which its commits are dated. One row.
select pg_catalog.clock_timestamp()
