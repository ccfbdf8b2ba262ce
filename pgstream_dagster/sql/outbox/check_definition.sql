-- Check all of a subscription against its table, and fill in what is ours; raises as its parts do.
create or replace function pgstream.check_definition(given pgstream.subscriptions)
returns pgstream.subscriptions
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    place text := format('subscription %L', given.key);
    is_truncate boolean := given.operation = 'TRUNCATE';
begin
    given.table_oid := pgstream.check_table(place, given.schema_name, given.table_name);
    if jsonb_typeof(given.metadata) is distinct from 'object' and given.metadata is not null then
        raise invalid_parameter_value using
            message = format('%s: metadata must be an object', place),
            hint = 'Write {"topic": "orders"}.';
    end if;
    if is_truncate and given.column_names is not null then
        raise invalid_parameter_value using
            message = format('%s: a TRUNCATE has no columns', place),
            hint = 'Leave column_names null.';
    end if;
    given.column_numbers := pgstream.check_columns(place, given.table_oid, given.column_names);
    if given.when_clause is not null then
        perform pgstream.check_expression(
            'condition of ' || place,
            given.table_oid, given.operation, given.when_clause, 'boolean'
        );
    end if;
    perform pgstream.check_extensions(
        'payload_extensions of ' || place,
        given.table_oid, given.operation, given.payload_extensions,
        array['new', 'old', 'tg_name', 'tg_op', 'tg_table_name', 'tg_table_schema', 'timestamp']
    );
    perform pgstream.check_extensions(
        'metadata_extensions of ' || place,
        given.table_oid, given.operation, given.metadata_extensions,
        array['pgstream_error', 'tg_leaf']
    );
    given.known_columns := pgstream.table_columns(given.table_oid);
    given.broken := null;
    return given;
end
$function$
