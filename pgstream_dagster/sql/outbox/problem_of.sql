-- Why a subscription does not fit its table, after it has followed it; null if it does. No row.
create or replace function pgstream.problem_of(given pgstream.subscriptions) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
declare
    followed pgstream.subscriptions := pgstream.followed(given);
begin
    if followed.broken is not null then
        return followed.broken;
    end if;
    perform pgstream.check_definition(followed);
    return null;
exception when others then
    return sqlerrm;
end
$function$
