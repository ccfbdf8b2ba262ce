-- A subscription as a value, for `set_subscriptions`: name what is not the default. One row.
create or replace function pgstream.subscription(
    key text,
    operation pgstream.operation_type,
    table_name text,
    schema_name text default 'public',
    when_clause text default null,
    column_names text[] default null,
    metadata jsonb default null,
    payload_extensions jsonb default null,
    metadata_extensions jsonb default null,
    timing text default 'deferred',
    on_error text default 'null',
    is_enabled boolean default true
) returns pgstream.subscriptions
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $function$
declare
    result pgstream.subscriptions;
begin
    result.key := key;
    result.operation := operation;
    result.table_name := table_name;
    result.schema_name := schema_name;
    result.when_clause := when_clause;
    result.column_names := column_names;
    result.metadata := metadata;
    result.payload_extensions := payload_extensions;
    result.metadata_extensions := metadata_extensions;
    result.timing := timing;
    result.on_error := on_error;
    result.is_enabled := is_enabled;
    return result;
end
$function$
