-- The columns of a table of the target, by attnum; a table without columns has one row with a null
-- name; no row when it does not exist. `sequence` is what the column owns. `plain_type` is the type
-- below domains: a staging table of it takes NULL, which a domain may not. `needs` are the columns
-- that a generated one is computed from. `key` are the columns of the primary key `key_name`.
--   %(namespace)s  text
--   %(name)s       text
select
    c.oid::bigint as table_oid,
    c.relkind::text as kind,
    a.attname::text as name,
    pg_catalog.format_type(a.atttypid, a.atttypmod) as type_name,
    coalesce(plain.type_name, pg_catalog.format_type(a.atttypid, a.atttypmod)) as plain_type,
    a.attidentity::text as identity,
    a.attgenerated <> '' as is_generated,
    owned.sequence,
    owned.is_descending,
    array(
        select n.attname::text
        from pg_catalog.pg_depend as x
        join pg_catalog.pg_attribute as n
            on n.attrelid = x.refobjid and n.attnum = x.refobjsubid and n.attnum <> a.attnum
        left join pg_catalog.pg_attrdef as f on f.adrelid = a.attrelid and f.adnum = a.attnum
        where
            a.attgenerated <> '' and x.refclassid = 'pg_catalog.pg_class'::regclass
            and x.refobjid = a.attrelid
            and (
                -- up to 15 the expression depends on its columns, later the column itself does
                (x.classid = 'pg_catalog.pg_attrdef'::regclass and x.objid = f.oid)
                or (
                    x.classid = 'pg_catalog.pg_class'::regclass and x.objid = a.attrelid
                    and x.objsubid = a.attnum
                )
            )
    ) as needs,
    k.conname::text as key_name,
    array(
        select b.attname::text
        from unnest(k.conkey) with ordinality as part (attnum, place)
        join pg_catalog.pg_attribute as b on b.attrelid = c.oid and b.attnum = part.attnum
        order by part.place
    ) as key
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
left join pg_catalog.pg_attribute as a
    on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.contype = 'p'
left join lateral (
    with recursive base as (
        select t.typbasetype as oid, t.typtypmod as typmod, 1 as depth
        from pg_catalog.pg_type as t
        where t.oid = a.atttypid and t.typtype = 'd'
        union all
        select t.typbasetype, t.typtypmod, base.depth + 1
        from base
        join pg_catalog.pg_type as t on t.oid = base.oid and t.typtype = 'd'
    )

    select pg_catalog.format_type(base.oid, base.typmod) as type_name
    from base
    order by base.depth desc
    limit 1
) as plain on true
left join lateral (
    select s.seqrelid::regclass::text as sequence, s.seqincrement < 0 as is_descending
    from pg_catalog.pg_depend as d
    join pg_catalog.pg_sequence as s on s.seqrelid = d.objid
    where
        d.classid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i')
        and d.refclassid = 'pg_catalog.pg_class'::regclass
        and d.refobjid = c.oid and d.refobjsubid = a.attnum
    order by s.seqrelid
    limit 1
) as owned on true
where
    n.nspname = %(namespace)s and c.relname = %(name)s
    and c.relkind in ('r', 'p', 'f')
order by a.attnum
