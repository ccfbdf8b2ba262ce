-- When the trigger of a subscription fires: a TRUNCATE has no rows to defer. No row.
create or replace function pgstream.timing_of(of_operation pgstream.operation_type, timing text)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
return case of_operation when 'TRUNCATE' then 'immediate' else timing end
