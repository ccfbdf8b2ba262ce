-- PL/pgSQL for a row of which a part has failed: each part by itself. No row.
--   number  integer  of the subscription in the function
-- A condition that fails makes an event with the reason in its metadata, and so does a payload that is
-- too large; a value that fails is null.
create or replace function pgstream.careful_code(given pgstream.subscriptions, number integer)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    of_payload text[] := pgstream.extension_fields(given.payload_extensions, 'expression');
    of_metadata text[] := pgstream.extension_fields(given.metadata_extensions, 'expression');
    payload_count integer := cardinality(of_payload);
    total integer := payload_count + cardinality(of_metadata);
    image text := 'pgstream.picked(%s_image, %s, %L)';
    new_code text := format(image, 'new', given.table_oid, given.column_numbers);
    old_code text := format(image, 'old', given.table_oid, given.column_numbers);
    lines text := format(E'matched_%s := true;\nfailure := null;\n', number);
    place integer := 0;
    expression text;
begin
    if given.when_clause is not null then
        lines := lines || format(
            $code$begin
matched_%1$s := (%2$s
);
exception when others or assert_failure then
get stacked diagnostics failure_reason = message_text, failure_state = returned_sqlstate;
failure := pgstream.failure(%3$L, %2$L, failure_reason, failure_state);
end;
$code$,
            number, given.when_clause, given.key
        );
    end if;
    lines := lines || format(
        E'if matched_%s then\nvalues_of_row := pg_catalog.array_fill(null::pg_catalog.jsonb,'
        ' array[%s]);\n', number, total
    );
    foreach expression in array of_payload || of_metadata loop
        place := place + 1;
        lines := lines || format(
            $code$begin
values_of_row[%s] := pg_catalog.jsonb_build_array((%s
)) -> 0;
exception when others or assert_failure then
null;
end;
$code$,
            place, expression
        );
    end loop;
    return lines || format(
        $code$begin
payload_%1$s := %2$s;
metadata_%1$s := %3$s;
exception when others or assert_failure then
get stacked diagnostics failure_reason = message_text, failure_state = returned_sqlstate;
payload_%1$s := '{}';
metadata_%1$s := null;
failure := pgstream.failure(%4$L, null, failure_reason, failure_state);
end;
if failure is not null then
begin
metadata_%1$s := coalesce(metadata_%1$s, '{}') || failure;
exception when others then
metadata_%1$s := failure;
end;
end if;
end if;
$code$,
        number,
        pgstream.payload_code(given, new_code, old_code, pgstream.value_codes(1, payload_count)),
        pgstream.metadata_code(given, pgstream.value_codes(payload_count + 1, total)),
        given.key
    );
end
$function$
