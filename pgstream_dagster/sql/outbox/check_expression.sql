-- Try an expression against the row type of a table; raise if it is none, or cannot run there.
--   result  text  'boolean' for a condition, else 'jsonb'
-- The text is first parsed as the body of two functions, once in parentheses and once in a CASE:
-- only one complete expression fits into both. Nothing of it is run, and both functions go.
create or replace function pgstream.check_expression(
    place text, relation oid, operation pgstream.operation_type, expression text, result text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set check_function_bodies = on
set standard_conforming_strings = on
as $function$
declare
    head text := format(
        'create function pgstream.checked_expression(%s) returns ',
        format(
            case operation
                when 'INSERT' then 'new %1$s'
                when 'UPDATE' then 'new %1$s, old %1$s'
                when 'DELETE' then 'old %1$s'
                else ''
            end,
            relation::regclass
        )
    );
    whole text := format(
        case result when 'boolean' then E'(%s\n)' else E'pg_catalog.jsonb_build_array((%s\n))' end,
        expression
    );
    tree text;
    state text;
    reason text;
    absent text := pgstream.absent_column(relation, expression);
begin
    begin
        execute head || 'void language sql '
            || format('as %L', format(E'select case when true then %s\n end', expression));
        raise exception using errcode = 'PGS01';
    exception when sqlstate 'PGS01' then
        null;
    end;
    begin
        execute head || result || format(' language sql as %L', 'select ' || whole);
        raise exception using errcode = 'PGS01';
    exception when sqlstate 'PGS01' then
        null;
    end;
    begin
        -- Now it is known to be an expression, so it may be part of a statement.
        execute head || result || ' language sql return ' || whole;
        select p.prosqlbody::text into tree
        from pg_proc as p
        where p.proname = 'checked_expression' and p.pronamespace = 'pgstream'::regnamespace;
        raise exception using errcode = 'PGS01';
    exception when sqlstate 'PGS01' then
        null;
    end;
    if exists (
        select from pgstream.named_columns(expression) as n
        where n.name = any (pgstream.virtual_columns(relation))
    ) then
        raise feature_not_supported using message =
            'it names a column that is generated when it is read: a trigger does not have its value';
    end if;
    if tree ~ ':has(SubLinks|Aggs|WindowFuncs|TargetSRFs) true' then
        raise feature_not_supported using message =
            'subqueries, aggregates, window functions and functions that return sets are refused';
    end if;
exception when others then
    get stacked diagnostics state = returned_sqlstate, reason = message_text;
    if state = '42P13' then
        state := '42804';
        reason := 'it must be of type boolean';
    elsif state = '42P01' and absent is not null then
        state := '42703';
        reason := format('column %L does not exist', absent);
    end if;
    perform pgstream.expression_error(place, expression, state, reason, operation);
end
$function$
