-- Make all that is generated what the subscriptions say, wherever it differs. No row. After a restore
-- of a dump a table may have the former oid of another, so all follow before anything is rebuilt.
create or replace function pgstream.repair() returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    part record;
begin
    update pgstream.outbox_version set revision = revision + 1;
    perform set_config('pgstream.is_in_repair', 'on', true);
    perform pgstream.follow();
    perform set_config('pgstream.is_in_repair', 'off', true);
    for part in
        select s.table_oid, s.operation, pgstream.timing_of(s.operation, s.timing) as timing
        from pgstream.subscriptions as s
        where s.table_oid is not null
        group by 1, 2, 3
        order by 1, 2, 3
    loop
        perform pgstream.rebuild(part.table_oid, part.operation, part.timing);
    end loop;
    for part in select p.* from pgstream.unused_functions() as p loop
        perform pgstream.rebuild(part.relation, part.operation, part.timing);
    end loop;
end
$function$
