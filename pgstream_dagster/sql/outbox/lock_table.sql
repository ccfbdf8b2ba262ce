-- Lock a table for a change of its triggers, without making its writers wait: each attempt waits
-- 50 ms at most, and there are attempts until `pgstream.lock_timeout` (2 s) has passed.
--   mode  text  of the lock
create or replace function pgstream.lock_table(relation oid, mode text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $function$
declare
    setting text := coalesce(nullif(current_setting('pgstream.lock_timeout', true), ''), '2s');
    patience interval := case when setting ~ '^\d+$' then setting || 'ms' else setting end;
    deadline timestamptz := clock_timestamp() + patience;
begin
    loop
        begin
            execute format('lock table %s in %s mode', relation::regclass, mode);
            return;
        exception when lock_not_available then
            if clock_timestamp() >= deadline then
                raise lock_not_available using
                    message = format(
                        'the triggers of %s were not changed: its lock was not free for %s',
                        relation::regclass, patience
                    ),
                    detail = 'Transactions that have written to the table are still open.',
                    hint = 'Try again, or wait longer: set pgstream.lock_timeout = ''10s''.';
            end if;
            perform pg_sleep(0.05);
        end;
    end loop;
end
$function$
