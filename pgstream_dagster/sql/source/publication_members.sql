-- The leaves that hold the rows of each published table, with the file each is in now: another
-- file means a rewrite, another leaf an attached or detached partition.
-- No row: the publication is empty or does not exist.
--   %(publication)s  text  name
with recursive tree as (
    select c.oid as relation_id, c.oid as member_id, c.relkind as member_kind
    from pg_catalog.pg_publication_tables as t
    join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
    join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = t.tablename
    where t.pubname = %(publication)s
    union all
    select tree.relation_id, c.oid, c.relkind
    from tree
    join pg_catalog.pg_inherits as i
        on i.inhparent = tree.member_id and not i.inhdetachpending
    join pg_catalog.pg_class as c on c.oid = i.inhrelid
    where tree.member_kind = 'p'
)

select
    tree.relation_id::bigint,
    coalesce(
        pg_catalog.jsonb_object_agg(
            tree.member_id, coalesce(pg_catalog.pg_relation_filenode(tree.member_id)::bigint, 0)
        ) filter (where tree.member_kind = 'r'),
        '{}'
    ) as members
from tree
group by tree.relation_id
