-- Generated functions that no subscription needs; no row: there are none.
create or replace function pgstream.unused_functions()
returns table (function_name text, relation oid, operation pgstream.operation_type, timing text)
language sql stable
set search_path = pg_catalog, pg_temp
as $function$
    select
        f.proname, f.parts[1]::oid, upper(f.parts[2])::pgstream.operation_type, f.parts[3]
    from (
        select
            p.proname::text,
            regexp_match(p.proname, '^capture_(\d+)_([a-z]+)_([a-z]+)$') as parts
        from pg_proc as p
        where p.pronamespace = 'pgstream'::regnamespace and p.proname ~ '^capture_\d+_'
    ) as f
    where not exists (
        select from pgstream.subscriptions as s
        where
            s.table_oid = f.parts[1]::oid and lower(s.operation::text) = f.parts[2]
            and pgstream.timing_of(s.operation, s.timing) = f.parts[3]
    );
$function$
