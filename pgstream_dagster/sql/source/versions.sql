-- Versions of what decides which changes of a table are sent and how its values are written: oid
-- and `xmin` of rows of the catalog. What changed and changed back has another version.
--   %(publication)s   text      name
--   %(relation_ids)s  bigint[]  published tables
-- One row per table. `listing`: the publication, its entries for the table and for its namespace,
-- and since when the table is in that namespace; 0 for what does not apply. `edges`: each partition
-- at any depth and since when it is attached. `types`: what the text of its values depends on besides
-- their bytes: each column's type (a domain's is its base type, varchar is text), each label of an
-- enum, the attributes of each composite type, and the names of all objects of a kind that a column
-- has references to (regclass and its like, aclitem); and the primary key, for under replica identity
-- FULL no row says whether there was one: a type that is changed makes the constraint again and keeps
-- the file (0 for a partitioned table), REINDEX and TRUNCATE do the reverse. `late_columns`: those
-- whose labels, attributes or names may have been changed since the column was made.
-- No row: the table or the publication does not exist.
-- Reads tables only: catalog functions show the present, not the session's snapshot.
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
),

used_by_column as (
    select asked.relation_id, a.attnum, a.atttypid as type_id
    from asked
    join pg_catalog.pg_attribute as a
        on a.attrelid = asked.relation_id and a.attnum > 0 and not a.attisdropped
    union
    select used.relation_id, used.attnum, inner_type.type_id
    from used_by_column as used
    join pg_catalog.pg_type as t on t.oid = used.type_id
    cross join lateral (
        select t.typbasetype as type_id
        union all
        select t.typelem
        union all
        select r.rngsubtype
        from pg_catalog.pg_range as r
        where t.oid in (r.rngtypid, r.rngmultitypid)
        union all
        select a.atttypid
        from pg_catalog.pg_attribute as a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
    ) as inner_type
    where inner_type.type_id <> 0
),

used as (
    select distinct relation_id, type_id
    from used_by_column
),

-- What a column's text depends on, with the transaction and command that last changed it.
changed as (
    select used.relation_id, used.attnum, e.xmin as xid, e.cmin as command
    from used_by_column as used
    join pg_catalog.pg_enum as e on e.enumtypid = used.type_id
    union all
    select used.relation_id, used.attnum, a.xmin, a.cmin
    from used_by_column as used
    join pg_catalog.pg_type as t on t.oid = used.type_id and t.typtype = 'c'
    join pg_catalog.pg_attribute as a on a.attrelid = t.typrelid and a.attnum > 0
),

-- The dependency of a column on its type is as old as the column, and never changed. Two ids of
-- transactions tell which of them began to write first; the times of their commits, where the server
-- keeps them, which ended first. Subtransactions have the time of the whole.
late as (
    select changed.relation_id, changed.attnum
    from changed
    left join pg_catalog.pg_depend as d
        on d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
        and d.objid = changed.relation_id and d.objsubid = changed.attnum
        and d.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass
    where
        d.objid is null
        or pg_catalog.age(changed.xid) < pg_catalog.age(d.xmin)
        or case
            when changed.xid = d.xmin
                then changed.command::text::bigint > d.cmin::text::bigint
            when pg_catalog.current_setting('track_commit_timestamp')::boolean
                then
                    (
                        pg_catalog.pg_xact_commit_timestamp(changed.xid),
                        changed.command::text::bigint
                    )
                    > (
                        pg_catalog.pg_xact_commit_timestamp(d.xmin),
                        d.cmin::text::bigint
                    )
        end
    union
    select used.relation_id, used.attnum
    from used_by_column as used
    join pg_catalog.pg_type as t
        on t.oid = used.type_id and t.typname ~ '^(reg|aclitem$)'
        and t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
),

-- System objects keep their names.
named as (
    -- The row type of a table is another version after a rename, and not after a TRUNCATE.
    select
        'regclass' as type_name,
        c.oid,
        pg_catalog.concat_ws(' ', c.relname, row_type.xmin) as name,
        c.relnamespace as namespace_id
    from pg_catalog.pg_class as c
    left join pg_catalog.pg_type as row_type on row_type.oid = c.reltype
    where c.relpersistence <> 't' and c.relkind <> 't' and c.relnamespace <> 99  -- pg_toast
    union all
    -- The names of functions and operators with their arguments have those of types.
    select kind.name, t.oid, pg_catalog.concat_ws(' ', t.typname, t.xmin), t.typnamespace
    from
        pg_catalog.pg_type as t,
        (values ('regtype'), ('regprocedure'), ('regoperator')) as kind (name)
    where t.typnamespace <> 99
    union all
    select kind.name, p.oid, p.proname || ' ' || p.proargtypes::text, p.pronamespace
    from pg_catalog.pg_proc as p, (values ('regproc'), ('regprocedure')) as kind (name)
    union all
    select kind.name, o.oid, o.oprname, o.oprnamespace
    from pg_catalog.pg_operator as o, (values ('regoper'), ('regoperator')) as kind (name)
    union all
    select 'regconfig', c.oid, c.cfgname, c.cfgnamespace from pg_catalog.pg_ts_config as c
    union all
    select 'regdictionary', d.oid, d.dictname, d.dictnamespace from pg_catalog.pg_ts_dict as d
    union all
    select 'regcollation', c.oid, c.collname, c.collnamespace from pg_catalog.pg_collation as c
    union all
    select kind.name, r.oid, r.rolname, 0::pg_catalog.oid
    from pg_catalog.pg_roles as r, (values ('regrole'), ('aclitem')) as kind (name)
    union all
    select 'regnamespace', n.oid, n.nspname, n.oid from pg_catalog.pg_namespace as n
    union all
    select 'regdatabase', d.oid, d.datname, 0::pg_catalog.oid from pg_catalog.pg_database as d
),

depends as (
    select
        asked.relation_id,
        'column ' || a.attnum as what,
        case
            when t.typbasetype <> 0 then t.typbasetype
            when t.typname = 'varchar' then 'pg_catalog.text'::pg_catalog.regtype
            else t.oid
        end::bigint as version
    from asked
    join pg_catalog.pg_attribute as a
        on a.attrelid = asked.relation_id and a.attnum > 0 and not a.attisdropped
    join pg_catalog.pg_type as t on t.oid = a.atttypid
    union all
    select used.relation_id, 'label ' || e.oid, e.xmin::text::bigint
    from used
    join pg_catalog.pg_enum as e on e.enumtypid = used.type_id
    union all
    select
        used.relation_id,
        'composite ' || t.oid,
        (
            select pg_catalog.hashtextextended(
                pg_catalog.string_agg(a.attnum || ' ' || a.atttypid, ',' order by a.attnum), 0
            )
            from pg_catalog.pg_attribute as a
            where a.attrelid = t.typrelid and a.attnum > 0
        )
    from used
    join pg_catalog.pg_type as t on t.oid = used.type_id and t.typtype = 'c'
    union all
    select
        used.relation_id,
        'names ' || t.typname,
        (
            select pg_catalog.hashtextextended(
                pg_catalog.string_agg(
                    pg_catalog.concat_ws(' ', named.oid, named.name, n.nspname, n.xmin),
                    ',' order by named.oid, named.name
                ),
                0
            )
            from named
            left join pg_catalog.pg_namespace as n on n.oid = named.namespace_id
            where named.type_name = t.typname and named.oid >= 16384
        )
    from used
    join pg_catalog.pg_type as t
        on t.oid = used.type_id and t.typname ~ '^(reg|aclitem$)'
        and t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
    union all
    select c.conrelid, key.what, key.version
    from pg_catalog.pg_constraint as c
    join asked on asked.relation_id = c.conrelid
    join pg_catalog.pg_class as i on i.oid = c.conindid
    cross join lateral (
        values ('primary key', c.oid::bigint), ('file of the primary key', i.relfilenode::bigint)
    ) as key (what, version)
    where c.contype = 'p'
),

edges as (
    select relation_id, pg_catalog.jsonb_object_agg(inhrelid, version::text::bigint) as seen
    from edge
    group by relation_id
),

types as (
    select relation_id, pg_catalog.jsonb_object_agg(what, coalesce(version, 0)) as seen
    from depends
    group by relation_id
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
    coalesce(edges.seen, '{}') as edges,
    coalesce(types.seen, '{}') as types,
    array(
        select 'column ' || late.attnum from late where late.relation_id = asked.relation_id
    ) as late_columns
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
left join edges on edges.relation_id = asked.relation_id
left join types on types.relation_id = asked.relation_id
