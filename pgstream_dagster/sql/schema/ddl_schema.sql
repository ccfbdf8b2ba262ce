-- A schema for `pgstream.schema_log`: its tables, as the documents of xata's pgstream have them.
-- A column's id is the oid of its table and its attnum, which no rename changes. Partitions are part
-- of their roots. With more than 100 tables only those that were affected, and "partial".
create or replace function pgstream.ddl_schema(namespace text, affected oid[]) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    members oid[];
    is_partial boolean;
begin
    members := array(
        select c.oid
        from pg_class as c inner join pg_namespace as n on c.relnamespace = n.oid
        where
            n.nspname = namespace and c.relkind in ('r', 'p') and c.relpersistence <> 't'
            and not c.relispartition and c.oid is distinct from to_regclass('pgstream.schema_log')
        limit 101
    );
    is_partial := cardinality(members) > 100;
    if is_partial then
        members := array(
            select c.oid
            from pg_class as c inner join pg_namespace as n on c.relnamespace = n.oid
            where c.oid = any(affected) and n.nspname = namespace and not c.relispartition
        );
    end if;
    return (
        select json_build_object(
            'tables', coalesce(
                json_agg(
                    json_build_object(
                        'oid', c.oid::text,
                        'name', c.relname,
                        'pgstream_id', c.oid::text,
                        'primary_key_columns', array(
                            select a.attname
                            from pg_index as i
                            cross join unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
                            inner join pg_attribute as a
                                on i.indrelid = a.attrelid and k.attnum = a.attnum
                            where
                                i.indrelid = c.oid and i.indisprimary and k.place <= i.indnkeyatts
                            order by k.place
                        ),
                        'columns', columns.found
                    )
                    order by c.relname
                ),
                '[]'
            )
        )::jsonb || case when is_partial then '{"partial": true}'::jsonb else '{}' end
        from pg_class as c
        cross join lateral (
            select array(
                select u.attnum
                from pg_index as i cross join unnest(i.indkey::int2[]) as u (attnum)
                where i.indrelid = c.oid and i.indisunique
            ) as attnums
        ) as unique_index
        cross join lateral (
            select coalesce(
                json_agg(
                    json_build_object(
                        'name', a.attname,
                        'type', format_type(a.atttypid, a.atttypmod),
                        'default', case
                            when a.attgenerated = '' then pg_get_expr(d.adbin, 0)
                        end,
                        'nullable', not a.attnotnull,
                        'unique', a.attnum = any(unique_index.attnums),
                        'generated', a.attgenerated <> '',
                        'metadata', m.description,
                        'pgstream_id', c.oid || '-' || a.attnum
                    )
                    order by a.attnum
                ),
                '[]'
            ) as found
            from pg_attribute as a
            left join pg_attrdef as d on a.attrelid = d.adrelid and a.attnum = d.adnum
            left join pg_description as m
                on a.attrelid = m.objoid and m.classoid = 'pg_class'::regclass
                and a.attnum = m.objsubid
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        ) as columns
        where c.oid = any(members)
    );
end
$function$
