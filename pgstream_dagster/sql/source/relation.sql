-- One relation and its attributes, dropped ones included, by attnum; one row with a null attnum
-- for a relation without columns; no row when it does not exist.
-- `missing` is an array of one element as array_out prints it: only that shows a value of any type
-- as its output function does. A partitioned table has no rows and no such value: its leaves do.
-- A column's default is left out while a session locks the table against readers: pg_get_expr would
-- wait for it (16 and later), and nothing depends on the default.
-- `may_be_null`: the NOT NULL is not validated (18); that is enough for a replica identity index.
-- `is_late`: the attribute was last changed by a transaction that began to write later than one, or
-- that committed later, where the server keeps the times of commits.
--   %(relation_id)s  bigint  oid
--   %(xid)s          bigint  32 bits, of that one; null: nothing is late
select
    n.nspname::text as namespace,
    c.relname::text as name,
    c.relreplident::text as identity,
    key.attnums as key_attnums,
    a.attnum,
    a.attname::text as column_name,
    a.atttypid::bigint as type_oid,
    a.atttypmod as typmod,
    a.attnotnull as not_null,
    exists (
        select from pg_catalog.pg_constraint as nn
        where
            nn.conrelid = c.oid and nn.contype = 'n' and not nn.convalidated
            and nn.conkey[1] = a.attnum
    ) as may_be_null,
    a.attisdropped as is_dropped,
    a.attgenerated <> '' as is_generated,
    coalesce(pg_catalog.age(a.xmin) < pg_catalog.age(message.xid), false)
    or coalesce(
        case
            when pg_catalog.current_setting('track_commit_timestamp')::boolean
                then
                    pg_catalog.pg_xact_commit_timestamp(a.xmin)
                    > pg_catalog.pg_xact_commit_timestamp(message.xid)
        end,
        false
    ) as is_late,
    case
        when not locked.is_locked then pg_catalog.pg_get_expr(d.adbin, d.adrelid)
    end as default_expression,
    case
        when a.atthasmissing then a.attmissingval::text
        when c.relkind = 'p' then (
            with recursive tree as (
                select i.inhrelid as oid
                from pg_catalog.pg_inherits as i
                where i.inhparent = c.oid
                union all
                select i.inhrelid
                from tree
                join pg_catalog.pg_inherits as i on i.inhparent = tree.oid
            )

            select leaf.attmissingval::text
            from tree
            join pg_catalog.pg_attribute as leaf
                on leaf.attrelid = tree.oid and leaf.attname = a.attname and leaf.atthasmissing
            order by tree.oid
            limit 1
        )
    end as missing
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
cross join (select %(xid)s::bigint::text::xid as xid) as message
cross join lateral (
    select exists (
        select from pg_catalog.pg_locks as l
        where l.relation = c.oid and l.mode = 'AccessExclusiveLock'
    ) as is_locked
) as locked
left join lateral (
    -- As relcache.c determines the replica identity; a deferrable primary key is none.
    -- INCLUDE columns are no part of the key.
    select (i.indkey::int2[])[0:i.indnkeyatts - 1] as attnums
    from pg_catalog.pg_index as i
    where
        i.indrelid = c.oid and i.indisvalid and i.indimmediate and i.indpred is null
        and (
            (c.relreplident in ('d', 'f') and i.indisprimary)
            or (c.relreplident = 'i' and i.indisreplident)
        )
) as key on true
left join pg_catalog.pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
left join pg_catalog.pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
where c.oid = %(relation_id)s::bigint::oid
order by a.attnum
