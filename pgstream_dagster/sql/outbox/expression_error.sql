-- Refuse a part of a subscription, with a hint where the SQLSTATE has one. Raises always.
--   place  text  what is refused, such as: condition of subscription 'k'
create or replace function pgstream.expression_error(
    place text, expression text, state text, reason text, operation pgstream.operation_type
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
    raise exception using
        errcode = state,
        message = format('%s: %s', place, reason),
        detail = format('The expression is: %s', expression),
        hint = case state
            when '42883' then
                'Write functions, and operators of extensions, with their schema, as in'
                ' auth.user_id(): the search path is empty.'
            when '42704' then 'Write types with their schema: the search path is empty.'
            when '42P01' then
                case operation
                    when 'INSERT' then 'In an INSERT there is new and no old.'
                    when 'DELETE' then 'In a DELETE there is old and no new.'
                    when 'TRUNCATE' then 'In a TRUNCATE there is neither new nor old.'
                    else 'Columns are new.<name> or old.<name>.'
                end
            when '42703' then 'Columns are new.<name> or old.<name>, as the table has them.'
            when '42804' then 'Write a condition as an expression of type boolean.'
            when '0A000' then 'Put the query into a function, and call it with its schema.'
            else 'Write one SQL expression over new and old.'
        end;
end
$function$
