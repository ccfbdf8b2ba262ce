-- One publication; no row when it does not exist.
-- Columns that only newer servers have are read through jsonb, so one text works from 15 to 18.
--   %(publication)s  text  name
--   %(mark)s         text  the comment on publications of ours
select
    p.puballtables as is_all_tables,
    p.pubviaroot as is_via_root,
    p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate as is_complete,
    p.pubupdate or p.pubdelete as needs_identity,
    coalesce(pg_catalog.to_jsonb(p) ->> 'pubgencols', 'n') <> 'n' as has_generated_columns,
    coalesce(pg_catalog.obj_description(p.oid, 'pg_publication') = %(mark)s, false) as is_ours
from pg_catalog.pg_publication as p
where p.pubname = %(publication)s
