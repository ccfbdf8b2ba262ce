-- Release the lock that copier_lock took.
--   %(pipeline)s  text
select pg_catalog.pg_advisory_unlock(
    pg_catalog.hashtext('pgstream copier'), pg_catalog.hashtext(%(pipeline)s)
)
