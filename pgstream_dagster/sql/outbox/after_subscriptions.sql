-- Trigger of `subscriptions`, after each statement: rebuild what its rows are about, and were.
create or replace function pgstream.after_subscriptions() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    part record;
    query text := 'select table_oid, operation, pgstream.timing_of(operation, timing) as timing'
        ' from %s where table_oid is not null';
begin
    if current_setting('pgstream.is_in_repair', true) = 'on' then
        return null;  -- it rebuilds everything at its end
    end if;
    query := case tg_op
        when 'INSERT' then format(query, 'new_rows')
        when 'DELETE' then format(query, 'old_rows')
        else format(query, 'new_rows') || ' union ' || format(query, 'old_rows')
    end;
    for part in execute query || ' group by 1, 2, 3 order by 1, 2, 3' loop
        perform pgstream.rebuild(part.table_oid, part.operation, part.timing);
    end loop;
    return null;
end
$function$
