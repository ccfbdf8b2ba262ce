-- Make function and trigger of one table, operation and timing what the subscriptions say. No row.
-- What is the same already stays, and no lock is taken for it. The trigger's argument is a digest of
-- its WHEN, which the catalog has in another form.
create or replace function pgstream.rebuild(
    relation oid, of_operation pgstream.operation_type, of_timing text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set check_function_bodies = on
as $function$
declare
    suffix text := lower(format('%s_%s', of_operation, of_timing));
    function_name text := format('capture_%s_%s', relation, suffix);
    trigger_name text := format('pgstream_%s', suffix);
    body text := pgstream.capture_code(relation, of_operation, of_timing);
    condition text := pgstream.condition_code(relation, of_operation, of_timing);
    digest text := coalesce(md5(condition), '');
    has_table boolean := exists (select from pg_class as c where c.oid = relation);
    existing_oid oid;
    is_same boolean;
begin
    select
        t.oid,
        t.tgargs = decode(digest, 'escape') || '\x00' and t.tgfoid = coalesce(
            to_regproc(format('pgstream.%I', function_name)), 0
        )
    into existing_oid, is_same
    from pg_trigger as t
    where t.tgrelid = relation and t.tgname = trigger_name and t.tgparentid = 0;
    if has_table and existing_oid is not null and (body is null or not is_same) then
        perform pgstream.lock_table(relation, 'access exclusive');
        execute format('drop trigger %I on %s', trigger_name, relation::regclass);
        existing_oid := null;
    end if;
    if body is null or not has_table then
        execute format('drop function if exists pgstream.%I()', function_name);
        return;
    end if;
    perform pgstream.write_function(function_name, body);
    if existing_oid is not null then
        return;
    end if;
    perform pgstream.lock_table(relation, 'share row exclusive');
    execute format(
        'create %strigger %I after %s on %s %s for each %s %s execute function pgstream.%I(%L)',
        case of_timing when 'deferred' then 'constraint ' else '' end,
        trigger_name, of_operation, relation::regclass,
        case of_timing when 'deferred' then 'deferrable initially deferred' else '' end,
        case of_operation when 'TRUNCATE' then 'statement' else 'row' end,
        'when (' || condition || ')', function_name, digest
    );
end
$function$
