-- Make function and trigger of one table, operation and timing what the subscriptions say. No row.
-- What is the same already stays, and no lock is taken for it. The trigger's argument is a digest of
-- its WHEN, which the catalog has in another form. Its name has the oid of the table: a partition
-- gets the triggers of its parent beside its own.
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
    trigger_name text := format('pgstream_%s_%s', relation, suffix);
    body text := pgstream.capture_code(relation, of_operation, of_timing);
    condition text := pgstream.condition_code(relation, of_operation, of_timing);
    digest text := coalesce(md5(condition), '');
    has_table boolean := exists (select from pg_class as c where c.oid = relation);
    other record;
    is_there boolean := false;
begin
    for other in
        select
            t.tgname as name, t.tgrelid as table_oid,
            coalesce(
                body is not null and t.tgrelid = relation and p.proname = function_name
                and t.tgargs = decode(digest, 'escape') || '\x00',
                false
            ) as is_same
        from pg_trigger as t inner join pg_proc as p on t.tgfoid = p.oid
        where
            t.tgparentid = 0 and p.pronamespace = 'pgstream'::regnamespace
            and (
                p.proname = function_name
                -- After a restore of a dump, the function may be named by another oid.
                or t.tgrelid = relation and p.proname ~ format('^capture_\d+_%s$', suffix)
            )
    loop
        if other.is_same then
            is_there := true;
        else
            perform pgstream.lock_table(other.table_oid, 'access exclusive');
            execute format('drop trigger %I on %s', other.name, other.table_oid::regclass);
        end if;
    end loop;
    if body is null or not has_table then
        execute format('drop function if exists pgstream.%I()', function_name);
        return;
    end if;
    perform pgstream.write_function(function_name, body);
    if is_there then
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
