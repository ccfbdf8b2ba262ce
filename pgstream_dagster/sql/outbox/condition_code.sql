-- WHEN of a trigger: that some condition holds. Null if one subscription has none, or if one must
-- not fail: a condition that fails in WHEN fails the application's statement, and keeps the columns
-- that it names from being dropped.
create or replace function pgstream.condition_code(
    relation oid, of_operation pgstream.operation_type, of_timing text
) returns text
language sql stable
set search_path = pg_catalog, pg_temp
return (
    select case
        when bool_and(s.on_error = 'fail' and s.when_clause is not null and of_operation <> 'TRUNCATE')
            then string_agg(format(E'(%s\n)', s.when_clause), ' or ')
    end
    from pgstream.in_force(relation, of_operation, of_timing) as s
)
