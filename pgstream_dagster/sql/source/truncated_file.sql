-- The file of an ordinary table, if the first command of a transaction gave it that file or emptied
-- it, and its entry in the catalog was not changed since, not even by what was rolled back.
-- No row: something else may have changed it.
--   %(relation_id)s  bigint  oid
--   %(xid)s          bigint  32 bits, of the (sub-)transaction
select c.relfilenode::bigint
from pg_catalog.pg_class as c
where
    c.oid = %(relation_id)s::bigint::oid and c.relkind = 'r'
    and c.xmin = %(xid)s::bigint::text::xid and c.cmin = '0' and c.xmax = '0'
