-- The triggers of `subscriptions`. Several statements; no row.
create or replace trigger one_writer
before insert or update or delete or truncate on pgstream.subscriptions
for each statement execute function pgstream.one_writer();

create or replace trigger before_subscription
before insert or update on pgstream.subscriptions
for each row execute function pgstream.before_subscription();

create or replace trigger after_insert
after insert on pgstream.subscriptions
referencing new table as new_rows
for each statement execute function pgstream.after_subscriptions();

create or replace trigger after_update
after update on pgstream.subscriptions
referencing old table as old_rows new table as new_rows
for each statement execute function pgstream.after_subscriptions();

create or replace trigger after_delete
after delete on pgstream.subscriptions
referencing old table as old_rows
for each statement execute function pgstream.after_subscriptions();
