-- The oid of the table of a subscription; raises if it cannot have our triggers.
create or replace function pgstream.check_table(place text, schema_name text, table_name text)
returns oid
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    found_class record;
    full_name text := format('%I.%I', schema_name, table_name);
begin
    select c.oid, c.relkind, c.relpersistence, c.relowner into found_class
    from pg_class as c inner join pg_namespace as n on c.relnamespace = n.oid
    where n.nspname = schema_name and c.relname = table_name;
    if not found then
        raise undefined_table using
            message = format('%s: table %s does not exist', place, full_name),
            hint = 'Names are compared as they are written, with upper and lower case.';
    end if;
    if found_class.relkind not in ('r', 'p') or found_class.relpersistence = 't'
        or schema_name in ('pgstream', 'pg_catalog', 'information_schema')
    then
        raise wrong_object_type using
            message = format('%s: %s cannot be subscribed', place, full_name),
            detail = 'A subscription is to a table: no view, foreign table, temporary table,'
            ' table of the system or of the outbox.',
            hint = 'Subscribe to the table that has the rows.';
    end if;
    -- Casts and types of the table's owner run with the rights of the outbox.
    if (select r.rolsuper from pg_roles as r where r.rolname = current_user)
        and not (select r.rolsuper from pg_roles as r where r.oid = found_class.relowner)
    then
        raise insufficient_privilege using
            message = format(
                '%s: %s belongs to %I, and the outbox to a superuser',
                place, full_name, pg_get_userbyid(found_class.relowner)
            ),
            hint = 'Install the outbox as the owner of the tables.';
    end if;
    if not pg_has_role(current_user, found_class.relowner, 'USAGE') then
        raise insufficient_privilege using
            message = format('%s: role %I does not own %s', place, current_user, full_name),
            hint = format(
                'Run grant %I to %I, or install the outbox as the owner of the table.',
                pg_get_userbyid(found_class.relowner), current_user
            );
    end if;
    return found_class.oid;
end
$function$
