-- Let subscriptions follow their tables: names of tables and columns, and which are broken. No row.
--   relation  oid  of one table; null for all
-- What cannot follow is marked as broken and taken out of the generated function.
create or replace function pgstream.follow(relation oid default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    subscription pgstream.subscriptions;
    followed pgstream.subscriptions;
    reason text;
begin
    for subscription in
        select * from pgstream.subscriptions as s
        where relation is null or s.table_oid = relation
        order by s.id
    loop
        followed := pgstream.followed(subscription);
        reason := followed.broken;
        if reason is null then
            begin
                followed := pgstream.check_definition(followed);
                if followed is distinct from subscription then
                    update pgstream.subscriptions as s
                    set
                        schema_name = followed.schema_name,
                        table_name = followed.table_name,
                        when_clause = followed.when_clause,
                        column_names = followed.column_names,
                        payload_extensions = followed.payload_extensions,
                        metadata_extensions = followed.metadata_extensions
                    where s.id = subscription.id;
                end if;
            exception
                when lock_not_available or serialization_failure or deadlock_detected then
                    raise;  -- says nothing of the subscription
                when others then
                    reason := sqlerrm;
            end;
        end if;
        if reason is not null and reason is distinct from subscription.broken then
            update pgstream.subscriptions as s set broken = reason where s.id = subscription.id;
        end if;
    end loop;
end
$function$
