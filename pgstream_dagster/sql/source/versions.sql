-- Versions of what decides which changes of a table reach us: oid and `xmin` of rows of the catalog.
-- What changed and changed back has another version.
--   %(publication)s   text      name
--   %(relation_ids)s  bigint[]  published tables
-- One row per table. `listing`: the publication, its entries for the table and for its namespace,
-- and since when the table is in that namespace; 0 for what does not apply. `edges`: each partition
-- at any depth and since when it is attached.
-- No row: the table or the publication does not exist.
-- Reads tables only: catalog functions would answer for now and not for the session's snapshot.
with recursive asked as (
    select c.oid as relation_id, c.relnamespace, c.relkind
    from pg_catalog.pg_class as c
    where c.oid = any(%(relation_ids)s::bigint[]::oid[])
),

edge as (
    select asked.relation_id, i.inhrelid, i.xmin as version
    from asked
    join pg_catalog.pg_inherits as i
        on i.inhparent = asked.relation_id and not i.inhdetachpending
    where asked.relkind = 'p'
    union all
    select edge.relation_id, i.inhrelid, i.xmin
    from edge
    join pg_catalog.pg_class as c on c.oid = edge.inhrelid and c.relkind = 'p'
    join pg_catalog.pg_inherits as i
        on i.inhparent = edge.inhrelid and not i.inhdetachpending
)

select
    asked.relation_id::bigint,
    array[
        p.oid::bigint,
        p.xmin::text::bigint,
        coalesce(pr.oid::bigint, 0),
        coalesce(pr.xmin::text::bigint, 0),
        coalesce(pn.oid::bigint, 0),
        coalesce(pn.xmin::text::bigint, 0),
        coalesce(d.xmin::text::bigint, 0)
    ] as listing,
    (
        select coalesce(pg_catalog.jsonb_object_agg(edge.inhrelid, edge.version::text::bigint), '{}')
        from edge
        where edge.relation_id = asked.relation_id
    ) as edges
from asked
join pg_catalog.pg_publication as p on p.pubname = %(publication)s
left join pg_catalog.pg_publication_rel as pr
    on pr.prpubid = p.oid and pr.prrelid = asked.relation_id
left join pg_catalog.pg_publication_namespace as pn
    on pn.pnpubid = p.oid and pn.pnnspid = asked.relnamespace
left join pg_catalog.pg_depend as d
    on pn.oid is not null
    and d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
    and d.objid = asked.relation_id and d.objsubid = 0
    and d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
