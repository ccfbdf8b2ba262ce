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
    stream_ids bigint[] := '{}';
    variables text := '';
    compute text;
    plain text := '';
    guarded text := '';
    careful text := '';
begin
    for given in select s.* from pgstream.in_force(relation, of_operation, of_timing) as s loop
        number := number + 1;
        stream_ids := stream_ids || given.stream_id;
        code := pgstream.fast_code(given);
        variables := variables || format(
            E'matched_%1$s boolean;\npayload_%1$s jsonb;\nmetadata_%1$s jsonb;\n', number
        );
        compute := format(
            E'matched_%1$s := (%2$s\n);\nif matched_%1$s then\n'
            'payload_%1$s := %3$s;\nmetadata_%1$s := %4$s;\nend if;\n',
            number, coalesce(given.when_clause, 'true'), code.payload_code, code.metadata_code
        );
        if given.on_error = 'fail' then
            plain := plain || compute;
        else
            guarded := guarded || compute;
            careful := careful || pgstream.careful_code(given, number);
        end if;
    end loop;
    if number = 0 then
        return null;
    end if;
    if guarded <> '' then
        variables := variables
            || E'new_image jsonb;\nold_image jsonb;\nvalues_of_row jsonb[];\n'
            'failure jsonb;\nfailure_reason text;\nfailure_state text;\n';
        guarded := format(
            E'begin\n%sexception when others or assert_failure then\n%s%s%send;\n', guarded,
            case
                when of_operation in ('INSERT', 'UPDATE')
                    then E'new_image := pgstream.row_image(new);\n'
            end,
            case
                when of_operation in ('UPDATE', 'DELETE')
                    then E'old_image := pgstream.row_image(old);\n'
            end,
            careful
        );
    end if;
    return format(
        E'\n-- made from pgstream.subscriptions; changes here are lost\n'
        'declare\n%sbegin\n%s%s%sreturn null;\nend\n',
        variables, guarded, plain, pgstream.insert_code(stream_ids)
    );
end
$function$
