-- The operations that a subscription may name. No row.
do $do$
begin
    if pg_catalog.to_regtype('pgstream.operation_type') is null then
        create type pgstream.operation_type as enum ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE');
    end if;
end
$do$
