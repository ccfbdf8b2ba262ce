-- Every subscription that is enabled, and whether it fits its table now; no row: there is none.
-- `problem_of` tries it, and leaves nothing behind.
select
    s.key, s.stream_id, s.operation::text,
    pg_catalog.format('%I.%I', s.schema_name, s.table_name) as "table",
    coalesce(s.broken, pgstream.problem_of(s.*)) as reason,
    s.known_columns is distinct from pgstream.table_columns(s.table_oid)
    or (f.subscription).schema_name is distinct from s.schema_name
    or (f.subscription).table_name is distinct from s.table_name as has_moved,
    not exists (
        select from pg_catalog.pg_class as c where c.oid = s.table_oid
    ) as is_of_former_table
from pgstream.subscriptions as s
cross join lateral (select pgstream.followed(s.*) as subscription) as f
where s.is_enabled
order by s.stream_id, s.key, s.id
