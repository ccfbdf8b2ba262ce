-- Trigger of `subscriptions`, before each statement: one writer at a time, until its transaction
-- ends. With a snapshot from before another writer's change, the update is an error (40001).
create or replace function pgstream.one_writer() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $function$
begin
    if tg_op = 'TRUNCATE' then
        raise feature_not_supported using
            message = 'subscriptions cannot be truncated',
            hint = 'Delete them: each takes its triggers along.';
    end if;
    update pgstream.outbox_version set revision = revision + 1;
    return null;
end
$function$
