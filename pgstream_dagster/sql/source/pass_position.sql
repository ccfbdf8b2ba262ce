-- Commit a transaction that changes nothing, so that the stream lands a position after every
-- earlier one, even on an idle source, and at once: it recognises the prefix. Waits for no standby.
-- One row; null on a server in recovery, which cannot.
select case
    when not pg_catalog.pg_is_in_recovery() then
        pg_catalog.set_config('synchronous_commit', 'local', true)
        || pg_catalog.pg_logical_emit_message(true, 'pgstream', 'pass')::text
end
