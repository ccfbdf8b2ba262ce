-- PL/pgSQL that inserts the events of a row. No row.
--   stream_ids  bigint[]  of the subscriptions, in the order of their variables
-- One statement for all: a statement costs about as much as the row that it inserts.
create or replace function pgstream.insert_code(stream_ids bigint[]) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
return (
    select case
        when count(*) = 1 then
            'if matched_1 then' || E'\ninsert into pgstream.events (stream_id, payload, metadata)'
            || format(E'\nvalues (%s, payload_1, metadata_1);\nend if;\n', stream_ids[1])
        else
            format(
                E'if %s then\ninsert into pgstream.events (stream_id, payload, metadata)\n'
                'select v.stream_id, v.payload, v.metadata from (values\n%s\n)'
                ' as v (is_matched, stream_id, payload, metadata) where v.is_matched;\nend if;\n',
                string_agg(format('matched_%s', s.number), ' or ' order by s.number),
                string_agg(
                    format(
                        '(matched_%1$s, %2$s::pg_catalog.int8, payload_%1$s, metadata_%1$s)',
                        s.number, s.id
                    ),
                    E',\n' order by s.number
                )
            )
    end
    from unnest(stream_ids) with ordinality as s (id, number)
)
