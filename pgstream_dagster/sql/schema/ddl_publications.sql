-- The publications that send a table's changes under its own name: name -> column list (attnums, or
-- null) and whether its stored generated columns are sent without one. As pg_publication_tables,
-- which may wait for a table that another session locks; this does not.
-- Via their root partitions are sent as the topmost of their ancestors that is published. Without
-- that the leaves are sent, each by its own column list, and no root.
create or replace function pgstream.ddl_publications(relation oid) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $function$
begin
    return (
        with recursive ancestors as (
            select c.oid, c.relnamespace, 0 as height
            from pg_class as c
            where c.oid = relation and c.relkind in ('r', 'p') and c.relpersistence = 'p'
            union all
            select p.oid, p.relnamespace, a.height + 1
            from ancestors as a
            inner join pg_class as c on a.oid = c.oid and c.relispartition
            inner join pg_inherits as i on a.oid = i.inhrelid
            inner join pg_class as p on i.inhparent = p.oid
        ),

        listed as (
            select r.prpubid as publication, a.height
            from ancestors as a inner join pg_publication_rel as r on a.oid = r.prrelid
            union all
            select n.pnpubid, a.height
            from ancestors as a inner join pg_publication_namespace as n on a.relnamespace = n.pnnspid
            union all
            select p.oid, a.height
            from ancestors as a inner join pg_publication as p on p.puballtables
        ),

        topmost as (
            select publication, max(height) as height from listed group by publication
        )

        select coalesce(
            jsonb_object_agg(
                p.pubname,
                jsonb_build_object(
                    'attnums', to_jsonb(r.prattrs::int2[]),
                    'generated', coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false)
                )
            ),
            '{}'
        )
        from topmost as t
        inner join pg_publication as p on t.publication = p.oid
        inner join pg_class as c on c.oid = relation
        left join pg_publication_rel as r on p.oid = r.prpubid and c.oid = r.prrelid
        where case when p.pubviaroot then t.height = 0 else c.relkind = 'r' end
    );
end
$function$
