-- The columns of a table as a report has them (`schema/ddl.py`), in the order of their attnums.
-- The values are those of `source/relation` and `source/types`; see there for `missing`.
-- pg_get_expr with a table waits for a session that locks it (16 and later), and only expressions of
-- generated columns need the table: they are left out while another session locks it against readers.
create or replace function pgstream.ddl_columns(relation oid) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    is_locked boolean := false;
    is_tree boolean;
begin
    select c.relkind = 'p' into is_tree from pg_class as c where c.oid = relation;
    if exists (select from pg_attribute as a where a.attrelid = relation and a.attgenerated <> '') then
        select bool_or(l.pid is distinct from pg_backend_pid())
            and not bool_or(l.pid is not distinct from pg_backend_pid())
        into is_locked
        from pg_locks as l
        where l.relation = ddl_columns.relation and l.mode = 'AccessExclusiveLock';
    end if;
    return (
        with recursive tree as (
            select i.inhrelid as oid
            from pg_inherits as i where is_tree and i.inhparent = relation
            union all
            select i.inhrelid
            from tree inner join pg_inherits as i on tree.oid = i.inhparent
        )

        select coalesce(
            jsonb_agg(
                jsonb_build_object(
                    'attnum', a.attnum,
                    'name', a.attname,
                    'type_oid', a.atttypid::bigint,
                    'typmod', a.atttypmod,
                    'type_name', format_type(a.atttypid, a.atttypmod),
                    'value_type', t.value_type,
                    'not_null', a.attnotnull,
                    'may_be_null', exists (
                        select from pg_constraint as nn
                        where
                            nn.conrelid = relation and nn.contype = 'n' and not nn.convalidated
                            and nn.conkey[1] = a.attnum
                    ),
                    'default', case
                        when a.attgenerated = '' then pg_get_expr(d.adbin, 0)
                        when is_locked is not true then pg_get_expr(d.adbin, d.adrelid)
                    end,
                    'missing', case
                        when a.atthasmissing then a.attmissingval::text
                        when is_tree then (
                            select leaf.attmissingval::text
                            from tree
                            inner join pg_attribute as leaf
                                on tree.oid = leaf.attrelid and leaf.attname = a.attname
                            where leaf.atthasmissing
                            order by tree.oid
                            limit 1
                        )
                    end,
                    'generated', a.attgenerated,
                    'identity', a.attidentity,
                    'comment', col_description(relation, a.attnum),
                    'labels', t.labels
                )
                order by a.attnum
            ),
            '[]'
        )
        from pg_attribute as a
        left join pgstream.ddl_types(
            array(
                select u.atttypid from pg_attribute as u
                where u.attrelid = relation and u.attnum > 0 and not u.attisdropped
            )
        ) as t on a.atttypid = t.type_oid
        left join pg_attrdef as d on a.attrelid = d.adrelid and a.attnum = d.adnum
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
    );
end
$function$
