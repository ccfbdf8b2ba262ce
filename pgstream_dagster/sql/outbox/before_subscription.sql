-- Trigger of `subscriptions`, before a row is written: check it. What an update leaves as it was
-- follows the table first. A subscription whose table is gone may be changed all the same.
create or replace function pgstream.before_subscription() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $function$
declare
    followed pgstream.subscriptions;
begin
    new.when_clause := nullif(btrim(new.when_clause), '');
    if tg_op = 'INSERT' then
        return pgstream.check_definition(new);
    end if;
    if new.broken is not null and new.broken is distinct from old.broken then
        return new;  -- `follow` found it broken
    end if;
    new.updated_at := clock_timestamp();
    if (new.schema_name, new.table_name) <> (old.schema_name, old.table_name) then
        return pgstream.check_definition(new);
    end if;
    followed := pgstream.followed(old);
    if followed.broken is not null then
        new.broken := followed.broken;
        return new;
    end if;
    new.schema_name := followed.schema_name;
    new.table_name := followed.table_name;
    if new.when_clause is not distinct from old.when_clause then
        new.when_clause := followed.when_clause;
    end if;
    if new.column_names is not distinct from old.column_names then
        new.column_names := followed.column_names;
    end if;
    if new.payload_extensions is not distinct from old.payload_extensions then
        new.payload_extensions := followed.payload_extensions;
    end if;
    if new.metadata_extensions is not distinct from old.metadata_extensions then
        new.metadata_extensions := followed.metadata_extensions;
    end if;
    return pgstream.check_definition(new);
end
$function$
