-- A subscription as its table is named now, and its columns; `broken` if the table is gone. The
-- table is known by its oid, and after a restore of a dump by its name. Writes nothing.
create or replace function pgstream.followed(given pgstream.subscriptions)
returns pgstream.subscriptions
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    current_class record;
    columns jsonb;
    renamed jsonb;
    by_name oid := to_regclass(format('%I.%I', given.schema_name, given.table_name));
begin
    given.broken := null;
    select c.oid, n.nspname, c.relname into current_class
    from pg_class as c inner join pg_namespace as n on c.relnamespace = n.oid
    where c.oid = coalesce(
        -- After a restore, the oid may be that of another table, which has no trigger of ours.
        (
            select k.oid
            from pg_class as k
            where
                k.oid = given.table_oid and k.relkind in ('r', 'p')
                and (by_name is null or by_name = k.oid or exists (
                    select
                    from pg_trigger as t inner join pg_proc as p on t.tgfoid = p.oid
                    where t.tgrelid = k.oid and t.tgparentid = 0 and starts_with(p.proname, format('capture_%s_', k.oid))
                ))
        ),
        by_name
    );
    if not found then
        given.broken := format('table %I.%I does not exist', given.schema_name, given.table_name);
        return given;
    end if;
    given.schema_name := current_class.nspname;
    given.table_name := current_class.relname;
    if given.table_oid is distinct from current_class.oid then
        return given;  -- another table, whose numbers of columns say nothing
    end if;
    columns := pgstream.table_columns(given.table_oid);
    select coalesce(jsonb_object_agg(k.value, columns ->> k.key), '{}') into renamed
    from jsonb_each_text(given.known_columns) as k
    where columns ->> k.key <> k.value;
    given.when_clause := pgstream.rename_columns(given.when_clause, renamed);
    given.payload_extensions := pgstream.rename_extensions(given.payload_extensions, renamed);
    given.metadata_extensions := pgstream.rename_extensions(given.metadata_extensions, renamed);
    if cardinality(given.column_numbers) > 0 then
        given.column_names := (
            select array_agg(columns ->> n.number::text order by n.place)
            from unnest(given.column_numbers) with ordinality as n (number, place)
            where columns ? n.number::text
        );
        if given.column_names is null then
            given.broken := 'all its columns were dropped';
        end if;
    end if;
    return given;
end
$function$
