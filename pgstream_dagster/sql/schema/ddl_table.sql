-- A table as a report has it (`DdlTable` of `schema/ddl.py`); null for an oid that is no table.
-- `key` as in `source/relation`: relcache.c determines the replica identity so, and a deferrable
-- primary key is none. INCLUDE columns are no part of it.
create or replace function pgstream.ddl_table(relation oid) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    return (
        select jsonb_build_object(
            'relation_id', c.oid::bigint,
            'namespace', n.nspname,
            'name', c.relname,
            'kind', c.relkind,
            'persistence', c.relpersistence,
            'identity', c.relreplident,
            'key', (
                select to_jsonb((i.indkey::int2[])[0:i.indnkeyatts - 1])
                from pg_index as i
                where
                    i.indrelid = c.oid and i.indisvalid and i.indimmediate and i.indpred is null
                    and (
                        (c.relreplident in ('d', 'f') and i.indisprimary)
                        or (c.relreplident = 'i' and i.indisreplident)
                    )
            ),
            'comment', obj_description(c.oid, 'pg_class'),
            'partition_of', (
                select jsonb_build_object(
                    'relation_id', p.oid::bigint, 'namespace', pn.nspname, 'name', p.relname
                )
                from pg_inherits as i
                inner join pg_class as p on i.inhparent = p.oid
                inner join pg_namespace as pn on p.relnamespace = pn.oid
                where c.relispartition and i.inhrelid = c.oid
            ),
            'publications', pgstream.ddl_publications(c.oid),
            'columns', pgstream.ddl_columns(c.oid)
        )
        from pg_class as c
        inner join pg_namespace as n on c.relnamespace = n.oid
        where c.oid = relation and c.relkind in ('r', 'p')
    );
end
$function$
