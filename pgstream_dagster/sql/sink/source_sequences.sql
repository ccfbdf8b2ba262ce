-- The sequences that tables are filled from: own ones, those of identity columns (no statement: the
-- column makes them), and those that a default names. `last_value` is null before the first value,
-- and where the role may not read it. `owner` is the column that owns it, `used_by` are those that
-- it fills, as `oid/column`.
--   %(relation_ids)s  bigint[]
select distinct on (s.seqrelid)
    n.nspname::text as namespace,
    pg_catalog.format('%%I.%%I', n.nspname, c.relname) as name,
    case when not exists (
        select from pg_catalog.pg_depend as i
        where
            i.classid = 'pg_catalog.pg_class'::regclass and i.objid = s.seqrelid
            and i.deptype = 'i'
    ) then
        pg_catalog.format(
            'create sequence %%I.%%I as %%s start with %%s increment by %%s minvalue %%s'
            ' maxvalue %%s cache %%s %%s',
            n.nspname, c.relname, pg_catalog.format_type(s.seqtypid, null), s.seqstart,
            s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
            case when s.seqcycle then 'cycle' else 'no cycle' end
        )
    end as statement,
    case when owner.objid is not null then
        pg_catalog.format(
            'alter sequence %%I.%%I owned by %%s.%%I',
            n.nspname, c.relname, owner.refobjid::regclass, column_name.attname
        )
    end as owned_by,
    case when pg_catalog.has_sequence_privilege(s.seqrelid, 'usage, select') then
        pg_catalog.pg_sequence_last_value(s.seqrelid)
    end as last_value,
    s.seqincrement < 0 as is_descending,
    pg_catalog.format('%%s/%%s', owner.refobjid, column_name.attname) as owner,
    array(
        select pg_catalog.format('%%s/%%s', u.attrelid, u.attname)
        from pg_catalog.pg_attribute as u
        where
            u.attrelid = any(%(relation_ids)s::bigint[]::oid[])
            and (u.attrelid, u.attnum) in (
                select d.refobjid, d.refobjsubid
                from pg_catalog.pg_depend as d
                where
                    d.classid = 'pg_catalog.pg_class'::regclass and d.objid = s.seqrelid
                    and d.refclassid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i')
                union all
                select def.adrelid, def.adnum
                from pg_catalog.pg_depend as d
                join pg_catalog.pg_attrdef as def on def.oid = d.objid
                where
                    d.classid = 'pg_catalog.pg_attrdef'::regclass
                    and d.refclassid = 'pg_catalog.pg_class'::regclass
                    and d.refobjid = s.seqrelid
            )
    ) as used_by
from pg_catalog.pg_sequence as s
join pg_catalog.pg_class as c on c.oid = s.seqrelid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
left join pg_catalog.pg_depend as owner
    on
        owner.classid = 'pg_catalog.pg_class'::regclass and owner.objid = s.seqrelid
        and owner.refclassid = 'pg_catalog.pg_class'::regclass and owner.deptype = 'a'
left join pg_catalog.pg_attribute as column_name
    on column_name.attrelid = owner.refobjid and column_name.attnum = owner.refobjsubid
where
    exists (
        select from pg_catalog.pg_depend as d
        where
            d.classid = 'pg_catalog.pg_class'::regclass and d.objid = s.seqrelid
            and d.refclassid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i')
            and d.refobjid = any(%(relation_ids)s::bigint[]::oid[])
    )
    or exists (
        select from pg_catalog.pg_depend as d
        join pg_catalog.pg_attrdef as def on def.oid = d.objid
        where
            d.classid = 'pg_catalog.pg_attrdef'::regclass
            and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = s.seqrelid
            and def.adrelid = any(%(relation_ids)s::bigint[]::oid[])
    )
order by s.seqrelid
