-- A name as SQL needs it: in quotes where it has to be. One row.
--   %(name)s  text
select pg_catalog.quote_ident(%(name)s)
