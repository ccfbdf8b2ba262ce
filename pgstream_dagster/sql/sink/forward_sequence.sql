-- Moves a sequence of the target forward to a value it has passed on the source; no row if it is
-- there already, or does not exist. Not transactional: it never goes back, so a rollback does no harm.
--   %(sequence)s       text     qualified and quoted
--   %(value)s          bigint
--   %(is_descending)s  boolean
select pg_catalog.setval(s.seqrelid::regclass, %(value)s)
from pg_catalog.pg_sequence as s
where
    s.seqrelid = pg_catalog.to_regclass(%(sequence)s)
    and %(value)s between s.seqmin and s.seqmax
    and case
        when %(is_descending)s
            then coalesce(pg_catalog.pg_sequence_last_value(s.seqrelid), s.seqstart + 1) > %(value)s
        else coalesce(pg_catalog.pg_sequence_last_value(s.seqrelid), s.seqstart - 1) < %(value)s
    end
