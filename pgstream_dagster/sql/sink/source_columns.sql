-- The columns of tables as CREATE TABLE writes them, in their order. `needs` are the columns that a
-- generated one is computed from. `plain` is the column without what could hold or refuse a value:
-- default, identity, expression, NOT NULL.
--   %(relation_ids)s  bigint[]
select
    a.attrelid::bigint as relation_id,
    a.attname::text as name,
    array(
        select n.attname::text
        from pg_catalog.pg_depend as x
        join pg_catalog.pg_attribute as n
            on n.attrelid = x.refobjid and n.attnum = x.refobjsubid and n.attnum <> a.attnum
        where
            a.attgenerated <> '' and x.refclassid = 'pg_catalog.pg_class'::regclass
            and x.refobjid = a.attrelid
            and (
                -- up to 15 the expression depends on its columns, later the column itself does
                (x.classid = 'pg_catalog.pg_attrdef'::regclass and x.objid = d.oid)
                or (
                    x.classid = 'pg_catalog.pg_class'::regclass and x.objid = a.attrelid
                    and x.objsubid = a.attnum
                )
            )
    ) as needs,
    shape.plain,
    pg_catalog.concat(
        shape.plain,
        case
            when a.attgenerated = 's' then
                pg_catalog.format(
                    ' generated always as (%%s) stored',
                    pg_catalog.pg_get_expr(d.adbin, d.adrelid)
                )
            when a.attgenerated = 'v' then
                pg_catalog.format(
                    ' generated always as (%%s)', pg_catalog.pg_get_expr(d.adbin, d.adrelid)
                )
            when a.attidentity <> '' then
                pg_catalog.format(
                    ' generated %%s as identity (sequence name %%s start with %%s increment by %%s'
                    ' minvalue %%s maxvalue %%s cache %%s %%s)',
                    case a.attidentity when 'a' then 'always' else 'by default' end,
                    s.seqrelid::regclass, s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
                    s.seqcache, case when s.seqcycle then 'cycle' else 'no cycle' end
                )
            when d.adbin is not null then
                pg_catalog.format(' default %%s', pg_catalog.pg_get_expr(d.adbin, d.adrelid))
        end,
        case when a.attnotnull then ' not null' end
    ) as definition
from pg_catalog.pg_attribute as a
join pg_catalog.pg_type as t on t.oid = a.atttypid
left join pg_catalog.pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
left join pg_catalog.pg_collation as co on co.oid = a.attcollation
left join pg_catalog.pg_namespace as cn on cn.oid = co.collnamespace
left join pg_catalog.pg_depend as owned
    on
        owned.refclassid = 'pg_catalog.pg_class'::regclass and owned.refobjid = a.attrelid
        and owned.refobjsubid = a.attnum and owned.deptype = 'i'
        and owned.classid = 'pg_catalog.pg_class'::regclass and a.attidentity <> ''
left join pg_catalog.pg_sequence as s on s.seqrelid = owned.objid
cross join lateral (
    select pg_catalog.concat(
        pg_catalog.format(
            '%%I %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)
        ),
        case when a.attcollation <> t.typcollation then
            pg_catalog.format(' collate %%I.%%I', cn.nspname, co.collname)
        end
    ) as plain
) as shape
where a.attrelid = any(%(relation_ids)s::bigint[]::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
