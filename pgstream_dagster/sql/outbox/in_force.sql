-- The subscriptions that a generated function has, in the order of their events. A TRUNCATE has no
-- rows to defer, so its trigger is always immediate.
create or replace function pgstream.in_force(
    relation oid, of_operation pgstream.operation_type, of_timing text
) returns setof pgstream.subscriptions
language sql stable
set search_path = pg_catalog, pg_temp
as $function$
    select s.*
    from pgstream.subscriptions as s
    where
        s.table_oid = relation and s.operation = of_operation
        and pgstream.timing_of(s.operation, s.timing) = of_timing
        and s.is_enabled and s.broken is null
    order by s.stream_id, s.key, s.id;
$function$
