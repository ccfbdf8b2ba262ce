-- Whether an event of a subscription is made of whole rows alone, so that nothing of it can fail.
create or replace function pgstream.cannot_fail(given pgstream.subscriptions) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
return given.when_clause is null and given.column_names is null
    and coalesce(jsonb_array_length(given.payload_extensions), 0) = 0
    and coalesce(jsonb_array_length(given.metadata_extensions), 0) = 0
