-- Make a generated function, unless it is the same already. No row.
-- `pg_temp` last: with an empty path, a temporary type of the application would come before the
-- built-in one of its name, and run code of the application as the owner of the function.
create or replace function pgstream.write_function(function_name text, body text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
    if exists (
        select from pg_proc as p
        where
            p.pronamespace = 'pgstream'::regnamespace and p.proname = function_name
            and p.prosrc = body
    ) then
        return;
    end if;
    execute format(
        'create or replace function pgstream.%I() returns trigger language plpgsql'
        ' security definer set search_path = pg_catalog, pg_temp set timezone = ''UTC'''
        -- How values are written must not depend on the session of the writer.
        ' set datestyle = ''ISO, YMD'' set intervalstyle = postgres set extra_float_digits = 1'
        ' set bytea_output = hex %s as %L',
        function_name,
        -- The only setting that changes how a text of SQL is read.
        case when strpos(body, '\') > 0 then 'set standard_conforming_strings = on' else '' end,
        body
    );
    execute format('revoke all on function pgstream.%I() from public', function_name);
end
$function$
