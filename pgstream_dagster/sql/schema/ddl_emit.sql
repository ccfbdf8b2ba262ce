-- Emit one report (`DdlReport` of `schema/ddl.py`), in the current (sub-)transaction.
-- The text is cut to 8,192 characters: what the client sent may be the dump of a database. A report
-- above 1 MiB, of an enum with very many labels, becomes `unknown`.
-- Decoding takes the end of a message's record for its place, which is where the next record starts:
-- a row of another (sub-)transaction that follows at once would have the same place, and be sent first.
-- So another record follows, a message outside of the transaction, which readers of reports ignore.
create or replace function pgstream.ddl_emit(
    xid bigint, event text, tag text, command text, relation jsonb
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    content bytea;
begin
    if length(command) > 8192 then
        command := left(command, 8188) || ' ...';
    end if;
    content := convert_to(
        jsonb_build_object(
            'format', 1, 'token', pgstream.ddl_token(), 'xid', xid, 'event', event, 'tag', tag,
            'text', command, 'table', relation
        )::text,
        'UTF8'
    );
    if octet_length(content) > 1048576 then
        perform pgstream.ddl_emit(xid, 'unknown', tag, null, null);
        return;
    end if;
    perform pg_logical_emit_message(true, 'pgstream.ddl', content);
    perform pg_logical_emit_message(false, 'pgstream', '');
end
$function$
