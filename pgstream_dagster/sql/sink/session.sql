-- Settings of a sink's session that the source's sessions do not have.
--   %(search_path)s  text
select
    pg_catalog.set_config('search_path', %(search_path)s, false),
    pg_catalog.set_config('client_min_messages', 'warning', false),
    pg_catalog.set_config('xmloption', 'content', false)
