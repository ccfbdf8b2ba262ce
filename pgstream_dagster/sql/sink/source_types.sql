-- The types that the columns of tables need, those that others are made of first; with the statement
-- that makes each. `labels` are those of an enum, in order.
--   %(relation_ids)s  bigint[]
with recursive needed as (
    select a.atttypid as oid, 0 as depth
    from pg_catalog.pg_attribute as a
    where
        a.attrelid = any(%(relation_ids)s::bigint[]::oid[]) and a.attnum > 0
        and not a.attisdropped
    union
    select inner_type.oid, needed.depth + 1
    from needed
    join pg_catalog.pg_type as t on t.oid = needed.oid
    cross join lateral (
        select t.typbasetype as oid where t.typtype = 'd'
        union all
        select t.typelem where t.typelem <> 0
        union all
        select a.atttypid from pg_catalog.pg_attribute as a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
            and not a.attisdropped
        union all
        select r.rngsubtype from pg_catalog.pg_range as r where r.rngtypid = t.oid
        union all
        select r.rngtypid from pg_catalog.pg_range as r where r.rngmultitypid = t.oid
    ) as inner_type
    where needed.depth < 30
),

chosen as (
    select t.oid, t.typname, t.typtype, t.typnamespace, max(needed.depth) as depth
    from needed
    join pg_catalog.pg_type as t on t.oid = needed.oid
    group by t.oid, t.typname, t.typtype, t.typnamespace
)

select
    n.nspname::text as namespace,
    pg_catalog.format('%%I.%%I', n.nspname, t.typname) as name,
    e.extname::text as extension,
    case when t.typtype = 'e' then (
        select pg_catalog.array_agg(l.enumlabel::text order by l.enumsortorder)
        from pg_catalog.pg_enum as l where l.enumtypid = t.oid
    ) end as labels,
    case
        when e.extname is not null then
            pg_catalog.format(
                'create extension if not exists %%I with schema %%I', e.extname, en.nspname
            )
        when t.typtype = 'e' then
            pg_catalog.format('create type %%I.%%I as enum (%%s)', n.nspname, t.typname, (
                select pg_catalog.string_agg(
                    pg_catalog.quote_literal(l.enumlabel), ', ' order by l.enumsortorder
                )
                from pg_catalog.pg_enum as l where l.enumtypid = t.oid
            ))
        when t.typtype = 'c' then
            pg_catalog.format('create type %%I.%%I as (%%s)', n.nspname, t.typname, (
                select pg_catalog.string_agg(
                    pg_catalog.format(
                        '%%I %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)
                    ), ', ' order by a.attnum
                )
                from pg_catalog.pg_attribute as a
                join pg_catalog.pg_type as own on own.typrelid = a.attrelid
                where own.oid = t.oid and a.attnum > 0 and not a.attisdropped
            ))
        when t.typtype = 'r' then (
            select pg_catalog.format(
                'create type %%I.%%I as range (subtype = %%s%%s%%s%%s)',
                n.nspname, t.typname, pg_catalog.format_type(r.rngsubtype, null),
                pg_catalog.format(
                    ', subtype_opclass = %%I.%%I', opn.nspname, op.opcname
                ),
                case when r.rngsubdiff <> 0 then
                    pg_catalog.format(', subtype_diff = %%s', r.rngsubdiff)
                end,
                pg_catalog.format(
                    ', multirange_type_name = %%I.%%I', mn.nspname, m.typname
                )
            )
            from pg_catalog.pg_range as r
            join pg_catalog.pg_opclass as op on op.oid = r.rngsubopc
            join pg_catalog.pg_namespace as opn on opn.oid = op.opcnamespace
            join pg_catalog.pg_type as m on m.oid = r.rngmultitypid
            join pg_catalog.pg_namespace as mn on mn.oid = m.typnamespace
            where r.rngtypid = t.oid
        )
        when t.typtype = 'd' then (
            select pg_catalog.concat(
                pg_catalog.format(
                    'create domain %%I.%%I as %%s', n.nspname, t.typname,
                    pg_catalog.format_type(d.typbasetype, d.typtypmod)
                ),
                case when d.typdefault is not null then
                    pg_catalog.format(' default %%s', d.typdefault)
                end,
                case when d.typnotnull then ' not null' end,
                (
                    select pg_catalog.string_agg(
                        pg_catalog.format(
                            ' constraint %%I %%s', c.conname,
                            pg_catalog.pg_get_constraintdef(c.oid)
                        ), '' order by c.conname
                    )
                    from pg_catalog.pg_constraint as c
                    where c.contypid = t.oid and c.contype = 'c'
                )
            )
            from pg_catalog.pg_type as d where d.oid = t.oid
        )
    end as statement
from chosen as t
join pg_catalog.pg_namespace as n on n.oid = t.typnamespace
left join pg_catalog.pg_depend as x
    on
        x.classid = 'pg_catalog.pg_type'::regclass and x.objid = t.oid and x.deptype = 'e'
left join pg_catalog.pg_extension as e on e.oid = x.refobjid
left join pg_catalog.pg_namespace as en on en.oid = e.extnamespace
where
    n.nspname <> 'pg_catalog' and t.typtype in ('e', 'c', 'r', 'd', 'b')
    and (e.extname is not null or t.typtype <> 'b')
    and not exists (
        select from pg_catalog.pg_type as own
        join pg_catalog.pg_class as k on k.oid = own.typrelid
        where own.oid = t.oid and k.relkind <> 'c'
    )
order by t.depth desc, t.oid
