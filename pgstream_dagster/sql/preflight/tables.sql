-- What matters for capture of each of these tables and, for a partitioned one, of each leaf.
-- No row for an oid that no longer exists. A table that is not partitioned is its own only leaf.
--   %(relation_ids)s  bigint[]  ordinary and partitioned tables
with recursive tree as (
    select
        c.oid as relation_id, c.oid as member_id, c.relkind, null::oid as detached_from
    from pg_catalog.pg_class as c
    where c.oid = any(%(relation_ids)s::bigint[]::oid[])
    union all
    select
        tree.relation_id, c.oid, c.relkind, case when i.inhdetachpending then i.inhparent end
    from tree
    join pg_catalog.pg_inherits as i on i.inhparent = tree.member_id
    join pg_catalog.pg_class as c on c.oid = i.inhrelid
    where tree.relkind = 'p'
)

select
    tree.relation_id::bigint,
    tree.member_id::bigint,
    pg_catalog.format('%%s.%%s', rn.nspname, rc.relname) as table_name,
    pg_catalog.format('%%I.%%I', rn.nspname, rc.relname) as table_sql,
    pg_catalog.format('%%s.%%s', n.nspname, c.relname) as member_name,
    pg_catalog.format('%%I.%%I', n.nspname, c.relname) as member_sql,
    c.relkind::text as kind,
    c.relpersistence::text as persistence,
    c.relreplident::text as identity,
    identity_index.columns as identity_columns,
    coalesce(identity_index.is_deferrable, false) as is_deferrable,
    coalesce(identity_index.generated, '{}') as generated_key,
    array(
        select pg_catalog.quote_ident(nn.conname)
        from pg_catalog.pg_constraint as nn
        where
            nn.conrelid = c.oid and nn.contype = 'n' and not nn.convalidated
            and nn.conkey[1] = any(identity_index.attnums)
        order by nn.conname
    ) as unvalidated_key,
    c.reltoastrelid <> 0 as has_toast,
    exists (
        select from pg_catalog.pg_attribute as a
        where a.attrelid = c.oid and a.attnum > 0 and a.attgenerated = 's'
    ) as has_stored_columns,
    exists (
        select from pg_catalog.pg_attribute as a
        where a.attrelid = c.oid and a.attnum > 0 and a.attgenerated = 'v'
    ) as has_virtual_columns,
    pg_catalog.row_security_active(c.oid) as hides_rows,
    pg_catalog.has_table_privilege(c.oid, 'SELECT') as may_select,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE') as may_use_namespace,
    pg_catalog.quote_ident(n.nspname) as namespace_sql,
    c.relrowsecurity as has_row_security,
    pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)) as owner_sql,
    exists (
        select from pg_catalog.pg_inherits as i
        where i.inhparent = c.oid and c.relkind = 'r'
    ) as has_children,
    (
        select pg_catalog.format('%%I.%%I', pn.nspname, pc.relname)
        from pg_catalog.pg_class as pc
        join pg_catalog.pg_namespace as pn on pn.oid = pc.relnamespace
        where pc.oid = tree.detached_from
    ) as detached_from_sql
from tree
join pg_catalog.pg_class as c on c.oid = tree.member_id
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
join pg_catalog.pg_class as rc on rc.oid = tree.relation_id
join pg_catalog.pg_namespace as rn on rn.oid = rc.relnamespace
left join lateral (
    select
        not i.indimmediate as is_deferrable,
        (i.indkey::int2[])[0:i.indnkeyatts - 1] as attnums,
        array(
            select a.attname::text
            from pg_catalog.pg_attribute as a
            where
                a.attrelid = i.indrelid and a.attgenerated <> ''
                and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
            order by a.attname
        ) as generated,
        array(
            select a.attname::text
            from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1])
                with ordinality as part (attnum, place)
            join pg_catalog.pg_attribute as a
                on a.attrelid = i.indrelid and a.attnum = part.attnum
            order by part.place
        ) as columns
    from pg_catalog.pg_index as i
    where
        i.indrelid = c.oid and i.indisvalid and i.indpred is null
        and (
            (c.relreplident in ('d', 'f') and i.indisprimary)
            or (c.relreplident = 'i' and i.indisreplident)
        )
) as identity_index on true
where c.relkind <> 'p' or tree.member_id = tree.relation_id
order by table_name, tree.member_id <> tree.relation_id, member_name
