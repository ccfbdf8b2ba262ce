-- Who may use the schema may insert events, and call nothing that acts as the owner. No row.
do $do$
declare
    called regprocedure;
begin
    for called in
        select p.oid
        from pg_catalog.pg_proc as p
        where
            p.pronamespace = 'pgstream'::regnamespace
            and p.proname not in ('uuid_v7', 'deep_merge')
            and pg_catalog.pg_has_role(p.proowner, 'USAGE')
    loop
        execute pg_catalog.format('revoke all on function %s from public', called);
    end loop;
end
$do$
