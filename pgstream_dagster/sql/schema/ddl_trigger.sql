-- Event trigger: report DDL in the stream of changes. DDL never fails because of us: what goes wrong
-- is a warning, and `unknown` is reported; nor does it wait, for anything, longer than 50 ms.
-- A block with an exception clause is a sub-transaction; the reports have its id, and go with it. That
-- of the failure is outside of one, and has the id of the transaction: at worst it is taken seriously
-- though a savepoint before it was rolled back.
-- The settings are those that shape the text of defaults and types, as in our own sessions; and to
-- compile a query of the catalog, or plan it each time, takes longer than to run it. By indexes a
-- report costs as much in a database of 100,000 tables as in one of ten; the planner, which does not
-- know how little is asked for, would read all of pg_depend.
create or replace function pgstream.ddl_trigger() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set timezone = 'UTC'
set extra_float_digits = 3
set bytea_output = 'hex'
set lc_monetary = 'C'
set xmlbinary = 'base64'
set quote_all_identifiers = off
set standard_conforming_strings = on
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $function$
begin
    perform pgstream.ddl_report(tg_event, tg_tag);
exception when others then
    raise warning 'pgstream could not report %: %', tg_tag, sqlerrm
    using hint = 'The command itself is done. See the guide "Schema changes" of pgstream_dagster.';
    begin
        perform pgstream.ddl_emit(
            pg_current_xact_id()::text::xid::text::bigint, 'unknown', tg_tag, null, null
        );
    exception when others then
        raise warning 'pgstream could not report that either: %', sqlerrm;
    end;
end
$function$
