-- `addition` over `base`: objects are merged at every depth, any other value is replaced. No row.
create or replace function pgstream.deep_merge(base jsonb, addition jsonb) returns jsonb
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $function$
begin
    if base is null or addition is null then
        return coalesce(addition, base);
    end if;
    if jsonb_typeof(base) <> 'object' or jsonb_typeof(addition) <> 'object' then
        return addition;
    end if;
    return base || (
        select coalesce(
            jsonb_object_agg(a.key, pgstream.deep_merge(base -> a.key, a.value)), '{}'
        )
        from jsonb_each(addition) as a
    );
end
$function$
