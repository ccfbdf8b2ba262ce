-- Remove the triggers of subscribed tables. No row. A table that is locked for longer than
-- `pgstream.lock_timeout` (2 s) makes it fail, and then all stays.
do $do$
declare
    part record;
begin
    for part in
        select t.tgname as name, t.tgrelid::pg_catalog.regclass as relation
        from pg_catalog.pg_trigger as t
        inner join pg_catalog.pg_proc as p on t.tgfoid = p.oid
        where
            t.tgparentid = 0 and p.proname ~ '^capture_\d+_'
            and p.pronamespace = 'pgstream'::pg_catalog.regnamespace
        order by 2, 1
    loop
        perform pgstream.lock_table(part.relation, 'access exclusive');
        execute pg_catalog.format('drop trigger %I on %s', part.name, part.relation);
    end loop;
end
$do$
