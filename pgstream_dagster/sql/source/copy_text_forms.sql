-- Types whose cast to text is not their output function, so that a copy must call that instead.
--   %(types)s  oid[]  types of columns, domains included
-- Rows: type, and its output function if it is in pg_catalog (else null). No row: `::text` gives
-- the output function's text. A cast without function counts, too: for xml it keeps the encoding
-- declaration, which xml_out leaves out. textout and varcharout print what is stored.
with recursive base as (
    select t.oid as type, t.oid as base, t.typtype, t.typbasetype
    from pg_catalog.pg_type as t
    where t.oid = any(%(types)s::pg_catalog.oid[])
    union all
    select d.type, t.oid, t.typtype, t.typbasetype
    from base as d
    join pg_catalog.pg_type as t on t.oid = d.typbasetype
    where d.typtype = 'd'
)
select b.type,
       case when t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace then p.proname::text end
from base as b
join pg_catalog.pg_cast as c
    on c.castsource = b.base
    and c.casttarget = 'pg_catalog.text'::pg_catalog.regtype
    and c.castmethod <> 'i'
join pg_catalog.pg_type as t on t.oid = b.base
join pg_catalog.pg_proc as p on p.oid = t.typoutput
where b.typtype <> 'd' and p.prosrc not in ('textout', 'varcharout')
