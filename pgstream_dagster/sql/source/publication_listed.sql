-- The relations that a publication lists one by one; no row for FOR ALL TABLES.
--   %(publication)s  text  name
select pr.prrelid::bigint
from pg_catalog.pg_publication_rel as pr
join pg_catalog.pg_publication as p on p.oid = pr.prpubid
where p.pubname = %(publication)s
