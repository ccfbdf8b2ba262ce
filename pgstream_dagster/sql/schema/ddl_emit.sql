-- Emit one report (`DdlReport` of `schema/ddl.py`), in the current (sub-)transaction.
-- The text is cut to 8,192 characters: what the client sent may be the dump of a database.
create or replace function pgstream.ddl_emit(
    xid bigint, event text, tag text, command text, relation jsonb
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
    if length(command) > 8192 then
        command := left(command, 8188) || ' ...';
    end if;
    perform pg_logical_emit_message(
        true,
        'pgstream.ddl',
        convert_to(
            jsonb_build_object(
                'format', 1, 'xid', xid, 'event', event, 'tag', tag, 'text', command,
                'table', relation
            )::text,
            'UTF8'
        )
    );
end
$function$
