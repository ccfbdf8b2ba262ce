-- SQL of payload and metadata of a subscription's event, as fast as can be. One row.
create or replace function pgstream.fast_code(
    given pgstream.subscriptions, out payload_code text, out metadata_code text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    new_code text := 'null';
    old_code text := 'null';
    without text[] := case
        when given.column_names is null then pgstream.virtual_columns(given.table_oid)
    end;
begin
    if given.operation in ('INSERT', 'UPDATE') then
        new_code := pgstream.image_code('new', given.column_names, without);
    end if;
    if given.operation in ('UPDATE', 'DELETE') then
        old_code := pgstream.image_code('old', given.column_names, without);
    end if;
    payload_code := pgstream.payload_code(
        given, new_code, old_code, pgstream.wrapped_fields(given.payload_extensions)
    );
    metadata_code := pgstream.metadata_code(
        given, pgstream.wrapped_fields(given.metadata_extensions)
    );
end
$function$
