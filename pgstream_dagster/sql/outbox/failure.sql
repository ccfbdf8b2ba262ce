-- Why a subscription has failed for a row, as a member of its event's metadata. No row.
--   expression  text  that has failed; null for the payload as a whole
create or replace function pgstream.failure(
    subscription text, expression text, message text, sqlstate text
) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
return jsonb_build_object(
    'pgstream_error',
    jsonb_strip_nulls(
        jsonb_build_object(
            'subscription', subscription, 'expression', expression,
            -- It may repeat a value that is larger than JSON takes.
            'message', left(message, 1000), 'sqlstate', sqlstate
        )
    )
)
