-- Check the extensions of a subscription: their shape, their paths, and each expression.
--   reserved  text[]  first parts of paths that are not theirs to set
create or replace function pgstream.check_extensions(
    place text,
    relation oid,
    operation pgstream.operation_type,
    extensions jsonb,
    reserved text[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    extension jsonb;
    path text;
    clash text;
    paths text[] := '{}';
begin
    if extensions is null then
        return;
    end if;
    if jsonb_typeof(extensions) <> 'array' then
        raise invalid_parameter_value using
            message = format('%s: must be an array', place),
            hint = 'Write [{"json_path": "a.b", "expression": "new.x"}].';
    end if;
    for extension in select value from jsonb_array_elements(extensions) loop
        path := extension ->> 'json_path';
        if jsonb_typeof(extension) <> 'object'
            or jsonb_typeof(extension -> 'json_path') is distinct from 'string'
            or jsonb_typeof(extension -> 'expression') is distinct from 'string'
            or extension - array['json_path', 'expression'] <> '{}' or path ~ '^$|^\.|\.\.|\.$'
        then
            raise invalid_parameter_value using
                message = format('%s: an element is malformed', place),
                detail = format('The element is: %s', extension),
                hint = 'An element has "json_path", such as "a.b", and "expression", both text.';
        end if;
        if split_part(path, '.', 1) = any (reserved) then
            raise reserved_name using
                message = format('%s: the field %L is reserved', place, split_part(path, '.', 1)),
                hint = format('Reserved are %s.', array_to_string(reserved, ', '));
        end if;
        select p into clash
        from unnest(paths) as p
        where p = path or starts_with(p, path || '.') or starts_with(path, p || '.');
        if clash is not null then
            raise invalid_parameter_value using
                message = format('%s: the paths %L and %L conflict', place, clash, path),
                hint = 'A path is given once, and no path is the beginning of another.';
        end if;
        paths := paths || path;
        perform pgstream.check_expression(
            format('%s, field %L', place, path),
            relation, operation, extension ->> 'expression', 'jsonb'
        );
    end loop;
end
$function$
