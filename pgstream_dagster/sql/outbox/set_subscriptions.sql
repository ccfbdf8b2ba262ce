-- Make the subscriptions of a stream these and no others. No row.
-- A subscription is the same if key, table and operation are; one that is unchanged is not touched,
-- and its trigger stays. `stream_id` and the columns of ours are not read.
create or replace function pgstream.set_subscriptions(
    stream_id bigint, subscriptions pgstream.subscriptions []
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
#variable_conflict use_column
begin
    delete from pgstream.subscriptions as s
    where s.stream_id = set_subscriptions.stream_id and not exists (
        select from unnest(set_subscriptions.subscriptions) as g
        where
            g.key = s.key and g.schema_name = s.schema_name and g.table_name = s.table_name
            and g.operation = s.operation
    );
    merge into pgstream.subscriptions as s
    using (
        select
            g.key, g.schema_name, g.table_name, g.operation, g.column_names, g.metadata,
            g.payload_extensions, g.metadata_extensions,
            nullif(btrim(g.when_clause), '') as when_clause,
            coalesce(g.timing, 'deferred') as timing,
            coalesce(g.on_error, 'null') as on_error,
            coalesce(g.is_enabled, true) as is_enabled
        from unnest(set_subscriptions.subscriptions) as g
    ) as g
    on
        s.stream_id = set_subscriptions.stream_id and g.key = s.key
        and g.schema_name = s.schema_name and g.table_name = s.table_name
        and g.operation = s.operation
    when matched and (
        s.when_clause, s.column_names, s.metadata, s.payload_extensions, s.metadata_extensions,
        s.timing, s.on_error, s.is_enabled
    ) is distinct from (
        g.when_clause, g.column_names, g.metadata, g.payload_extensions, g.metadata_extensions,
        g.timing, g.on_error, g.is_enabled
    ) then update set
        when_clause = g.when_clause,
        column_names = g.column_names,
        metadata = g.metadata,
        payload_extensions = g.payload_extensions,
        metadata_extensions = g.metadata_extensions,
        timing = g.timing,
        on_error = g.on_error,
        is_enabled = g.is_enabled
    when not matched then insert (
        stream_id, key, schema_name, table_name, operation, when_clause, column_names, metadata,
        payload_extensions, metadata_extensions, timing, on_error, is_enabled
    ) values (
        set_subscriptions.stream_id, g.key, g.schema_name, g.table_name, g.operation,
        g.when_clause, g.column_names, g.metadata, g.payload_extensions, g.metadata_extensions,
        g.timing, g.on_error, g.is_enabled
    );
end
$function$
