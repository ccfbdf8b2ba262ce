-- The tables of one publication as pgoutput sends them, with the leaves that hold their rows.
-- No row: the publication is empty or does not exist.
-- Waits for an ALTER TABLE that locks one of them (from 16 on the view itself does). Before 18 the
-- view may list generated columns, which pgoutput does not send on those servers.
--   %(publication)s  text  name
with recursive published as (
    select
        c.oid as relation_id,
        t.schemaname::text as namespace,
        t.tablename::text as name,
        c.relkind,
        t.attnames,
        t.rowfilter as row_filter
    from pg_catalog.pg_publication_tables as t
    join pg_catalog.pg_namespace as n on n.nspname = t.schemaname
    join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = t.tablename
    where t.pubname = %(publication)s
),

tree as (
    select relation_id, relation_id as member_id, relkind as member_kind from published
    union all
    select tree.relation_id, c.oid, c.relkind
    from tree
    join pg_catalog.pg_inherits as i
        on i.inhparent = tree.member_id and not i.inhdetachpending
    join pg_catalog.pg_class as c on c.oid = i.inhrelid
    where tree.member_kind = 'p'
),

leaves as (
    select
        tree.relation_id,
        pg_catalog.jsonb_object_agg(
            tree.member_id, coalesce(pg_catalog.pg_relation_filenode(tree.member_id)::bigint, 0)
        ) as members,
        sum(greatest(c.reltuples, 0))::bigint as estimated_rows,
        sum(
            coalesce(pg_catalog.pg_relation_size(tree.member_id), 0)
            / pg_catalog.current_setting('block_size')::int
        )::bigint as pages
    from tree
    join pg_catalog.pg_class as c on c.oid = tree.member_id
    where tree.member_kind = 'r'
    group by tree.relation_id
),

shown as (
    select p.relation_id, a.attnum, a.attname
    from published as p
    join pg_catalog.pg_attribute as a
        on a.attrelid = p.relation_id and a.attnum > 0 and not a.attisdropped
        and a.attname = any(p.attnames)
    where
        a.attgenerated = ''
        or pg_catalog.current_setting('server_version_num')::int >= 180000
)

select
    p.relation_id::bigint,
    p.namespace,
    p.name,
    p.relkind::text as kind,
    array(
        select s.attname::text from shown as s where s.relation_id = p.relation_id order by s.attnum
    ) as columns,
    array(
        select s.attnum from shown as s where s.relation_id = p.relation_id order by s.attnum
    ) as attnums,
    (
        select coalesce(max(a.attnum), 0)
        from pg_catalog.pg_attribute as a
        where a.attrelid = p.relation_id and a.attnum > 0
    ) as newest_attnum,
    p.row_filter,
    coalesce(l.members, '{}') as members,
    coalesce(l.estimated_rows, 0) as estimated_rows,
    coalesce(l.pages, 0) as pages
from published as p
left join leaves as l on l.relation_id = p.relation_id
order by p.namespace, p.name
