-- An expression with columns of new and old under other names. Returns null for null.
--   renamed  jsonb  former name to current name
-- It goes over the tokens, so that text in quotes stays. What it gets wrong (a backslash or dollar
-- quote) is refused or found by the check that follows.
create or replace function pgstream.rename_columns(expression text, renamed jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    token text;
    bare text;
    result text := '';
    state integer := 0;  -- 1: after new or old; 2: after the dot that follows
begin
    if expression is null or renamed = '{}' then
        return expression;
    end if;
    for token in
        select m[1]
        from regexp_matches(
            expression,
            '(''(?:[^'']|'''')*''|"(?:[^"]|"")*"|[[:alpha:]_][[:alnum:]_$]*|\s+|.)', 'g'
        ) as m
    loop
        if token ~ '^\s+$' or (token = ')' and state = 1) then
            result := result || token;
            continue;
        end if;
        bare := case
            when token like '"%' then replace(substr(token, 2, length(token) - 2), '""', '"')
            when token ~ '^[[:alpha:]_]' then lower(token)
        end;
        if state = 2 and renamed ? bare then
            token := quote_ident(renamed ->> bare);
        end if;
        state := case
            when state = 1 and token = '.' then 2
            when state <> 2 and bare in ('new', 'old') then 1
            else 0
        end;
        result := result || token;
    end loop;
    return result;
end
$function$
