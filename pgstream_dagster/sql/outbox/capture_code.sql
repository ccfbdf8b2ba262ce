-- The body of the function of one table, operation and timing; null without a subscription.
-- Every part that can fail is in a block that catches it, unless the subscription is to fail. The
-- events are inserted outside of that block: inside, each row would have a transaction id of its own.
create or replace function pgstream.capture_code(
    relation oid, of_operation pgstream.operation_type, of_timing text
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
declare
    given pgstream.subscriptions;
    code record;
    number integer := 0;
    variables text := '';
    guarded text := '';
    careful text := '';
    inserts text := '';
    can_fail boolean;
    insert_code text :=
        E'insert into pgstream.events (stream_id, payload, metadata) values (%s, %s, %s);\n';
begin
    for given in select s.* from pgstream.in_force(relation, of_operation, of_timing) as s loop
        number := number + 1;
        code := pgstream.fast_code(given);
        can_fail := given.on_error = 'null' and (
            given.when_clause is not null or given.column_names is not null
            or cardinality(pgstream.extension_fields(given.payload_extensions, 'json_path')) > 0
            or cardinality(pgstream.extension_fields(given.metadata_extensions, 'json_path')) > 0
        );
        if not can_fail then
            code.payload_code := format(
                insert_code, given.stream_id, code.payload_code, code.metadata_code
            );
            inserts := inserts || case
                when given.when_clause is null then code.payload_code
                else format(E'if (%s\n) then\n%send if;\n', given.when_clause, code.payload_code)
            end;
            continue;
        end if;
        variables := variables || format(
            E'matched_%1$s boolean;\npayload_%1$s jsonb;\nmetadata_%1$s jsonb;\n', number
        );
        guarded := guarded || format(
            E'matched_%1$s := (%2$s\n);\nif matched_%1$s then\n'
            'payload_%1$s := %3$s;\nmetadata_%1$s := %4$s;\nend if;\n',
            number, coalesce(given.when_clause, 'true'), code.payload_code, code.metadata_code
        );
        careful := careful || pgstream.careful_code(given, number);
        inserts := inserts || format(
            E'if matched_%1$s then\n%2$send if;\n', number,
            format(
                insert_code,
                given.stream_id, format('payload_%s', number), format('metadata_%s', number)
            )
        );
    end loop;
    if number = 0 then
        return null;
    end if;
    if guarded <> '' then
        variables := variables
            || E'values_of_row jsonb[];\nfailure jsonb;\nfailure_reason text;\nfailure_state text;\n';
        guarded := format(E'begin\n%sexception when others then\n%send;\n', guarded, careful);
    end if;
    return format(
        E'\n-- made from pgstream.subscriptions; changes here are lost\n'
        'declare\n%sbegin\n%s%sreturn null;\nend\n', variables, guarded, inserts
    );
end
$function$
