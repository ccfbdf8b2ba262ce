-- What is made after the rows of a copy: indexes and constraints, foreign keys last.
-- `other_id` is the other table of a foreign key; `place` the table that has `name`; `needs` are the
-- columns of `relation_id` that it names, in expressions too, `other_needs` those of the other
-- table. `kind`: `index`, `unique` (index or constraint), or `condition` for what else may refuse a
-- row or hold a value: checks, exclusions, foreign keys, and indexes with an expression or predicate.
-- `is_part`: it belongs to a partition.
--   %(relation_id)s  bigint  the root's rows come under its oid, so its partitions are included
with recursive tree as (
    select %(relation_id)s::bigint::oid as oid
    union all
    select i.inhrelid
    from tree
    join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relispartition
),

named as not materialized (
    select d.classid, d.objid, d.refobjid, a.attname::text as name
    from pg_catalog.pg_depend as d
    join pg_catalog.pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    where d.refclassid = 'pg_catalog.pg_class'::regclass
)

select
    1 as step,
    i.indrelid::regclass::text as place,
    ic.relname::text as name,
    null::bigint as other_id,
    array(
        select n.name
        from named as n
        where
            n.classid = 'pg_catalog.pg_class'::regclass and n.objid = i.indexrelid
            and n.refobjid = i.indrelid
    ) as needs,
    case when ic.relkind = 'I'
        -- On a partitioned table it is printed as pg_dump needs it, which attaches the parts.
        then pg_catalog.regexp_replace(pg_catalog.pg_get_indexdef(ic.oid), ' ON ONLY ', ' ON ')
        else pg_catalog.pg_get_indexdef(ic.oid)
    end as statement,
    case
        when i.indexprs is not null or i.indpred is not null then 'condition'
        when i.indisunique then 'unique'
        else 'index'
    end as kind,
    '{}'::text[] as other_needs,
    i.indrelid <> %(relation_id)s::bigint::oid as is_part
from tree
join pg_catalog.pg_index as i on i.indrelid = tree.oid and i.indisvalid
join pg_catalog.pg_class as ic on ic.oid = i.indexrelid
where
    not exists (
        select from pg_catalog.pg_constraint as c
        where c.conindid = i.indexrelid and c.contype in ('p', 'u', 'x')
    )
    and not exists (select from pg_catalog.pg_inherits as h where h.inhrelid = i.indexrelid)
union all
select
    case c.contype when 'f' then 3 else 2 end,
    c.conrelid::regclass::text,
    c.conname::text,
    case
        when c.contype = 'f' and c.conrelid in (select oid from tree) then c.confrelid::bigint
        when c.contype = 'f' then c.conrelid::bigint
    end,
    array(
        select n.name
        from named as n
        where
            n.classid = 'pg_catalog.pg_constraint'::regclass and n.objid = c.oid
            and n.refobjid in (select oid from tree)
    ),
    pg_catalog.format(
        'alter table %%s add constraint %%I %%s',
        c.conrelid::regclass, c.conname, pg_catalog.pg_get_constraintdef(c.oid)
    ),
    case c.contype when 'u' then 'unique' else 'condition' end,
    array(
        select n.name
        from named as n
        where
            n.classid = 'pg_catalog.pg_constraint'::regclass and n.objid = c.oid
            and n.refobjid not in (select oid from tree)
    ),
    c.conrelid <> %(relation_id)s::bigint::oid and c.conrelid in (select oid from tree)
from pg_catalog.pg_constraint as c
where
    c.contype in ('u', 'c', 'x', 'f') and c.conparentid = 0 and c.conislocal
    and (
        c.conrelid in (select oid from tree)
        or (c.contype = 'f' and c.confrelid in (select oid from tree))
    )
order by step, name
