-- Whether the two tables that a sink keeps in its target exist; always one row.
select
    pg_catalog.to_regclass('pgstream.sink_progress') is not null
    and pg_catalog.to_regclass('pgstream.sink_tables') is not null
