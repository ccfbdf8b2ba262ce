-- Add a subscription with its id; no row: one of this id is there already.
--   %(id)s                   uuid
--   %(key)s                  text
--   %(stream_id)s            bigint
--   %(operation)s            text
--   %(schema_name)s          text
--   %(table_name)s           text
--   %(when_clause)s          text    null for always
--   %(column_names)s         text[]
--   %(metadata)s             text    JSON; so are the next two
--   %(payload_extensions)s   text
--   %(metadata_extensions)s  text
insert into pgstream.subscriptions (
    id, key, stream_id, operation, schema_name, table_name, when_clause, column_names, metadata,
    payload_extensions, metadata_extensions
)
select
    i.id, %(key)s, %(stream_id)s, %(operation)s::pgstream.operation_type, %(schema_name)s,
    %(table_name)s, %(when_clause)s, %(column_names)s::text[], %(metadata)s::jsonb,
    %(payload_extensions)s::jsonb, %(metadata_extensions)s::jsonb
from (values (%(id)s::uuid)) as i (id)
where not exists (select from pgstream.subscriptions as s where s.id = i.id)
returning id
