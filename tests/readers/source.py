"""The source of the readers' lake: three tables, and what happens to them."""

from __future__ import annotations

from typing import Final

TYPES: Final = """
create type public.mood as enum ('sad', 'happy', 'so so');
create table public."Many Types" (
  id int primary key,
  flag boolean, tiny smallint, big bigint, price numeric(12,2), huge numeric, ratio real,
  measure double precision, note text, label varchar(40), fixed char(5), raw bytea, born date,
  seen timestamp, at timestamptz, hour time, span interval, key uuid, doc json, docb jsonb,
  mood public.mood, ints int[], words text[], nets inet, days daterange,
  bits bit(3), big_note text, gone text, "Mixed Case" int
)
"""

FIRST_ROWS: Final = """
insert into public."Many Types" values
  (1, true, 1, 9223372036854775807, 1234567890.12, 1e40, 1.5, 0.1, 'plain', 'label', 'abc',
   '\\x00ff10', '2026-02-28', '2026-02-28 12:34:56.789012', '2026-02-28 12:34:56.789012+02',
   '23:59:59.999999', '1 year 2 days 03:04:05', '0b2ad5e1-24ac-4fcb-b3b3-7bd8f3b5d0a5',
   '{"a":  1, "b": [null, "x"]}', '{"b": 2, "a": 1.50}', 'so so', '{1,2,NULL}',
   '{a,"b c",NULL,"NULL","q\\"q"}', '10.0.0.1', '[2026-01-01,2026-02-01)',
   '101', repeat('0123456789', 400), 'gone', 1),
  (2, false, -32768, -9223372036854775808, -0.01, 'NaN', 'NaN', '-Infinity', '', '', 'a', '',
   'infinity', '-infinity', 'infinity', '00:00', '-1 day', null, 'null', 'null', 'sad',
   '{}', '{}', 'fe80::1/64', 'empty', '000', repeat('x', 4000), null, 2),
  (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
   null, null, null, null, null, null, null, null, null, null, null, null, null),
  (4, true, 0, 0, 0.00, 0.1000, 1e-30, 'NaN', E'tab\\tand\\nline, "quoted" ''it''', 'ümläut €',
   'é', '\\xdeadbeef', '0044-03-15 BC', '1900-01-01 00:00:00', '1970-01-01 00:00:00.000001+00',
   '12:00', '00:00:00.000001', '00000000-0000-0000-0000-000000000000', '"text"', '"text"',
   'happy', '{{1,2},{3,4}}', '{{a},{b}}', '1.2.3.0/24', '(,2026-01-01)', '111',
   repeat('y', 4000), 'gone', 3);
insert into public."Many Types" (id, note) values (5, 'deleted later')
"""

ORDERS: Final = """
create table public.orders (
  id bigint primary key, status text, amount numeric(10,2), note text, at timestamptz
);
insert into public.orders
  select n, (array['new','paid','sent'])[n % 3 + 1], n * 1.01, repeat(md5(n::text), 20),
    '2026-01-01'::timestamptz + n * interval '1 minute'
  from generate_series(1, 3000) as n
"""

DOCUMENTS: Final = """
create table public.documents (id int primary key, doc jsonb);
alter table public.documents replica identity full;
insert into public.documents values (1, '{"n": 1, "deep": {"x": [1, null, "y"]}}'), (2, '[]'),
  (3, null), (4, '"text"')
"""

CHANGES: Final = (
    """update public."Many Types" set flag = not flag, tiny = 7, price = 5.50, words = '{new}',
       docb = '{"changed": true}' where id in (1, 3)""",
    """delete from public."Many Types" where id = 5""",
    """update public."Many Types" set id = 40 where id = 4""",
    "update public.orders set status = 'paid', amount = amount + 1 where id % 10 = 0",
    "delete from public.orders where id % 7 = 0",
    """update public.documents set doc = '{"n": 2}' where id = 2""",
    "delete from public.documents where id = 4",
    "insert into public.orders values (5000, null, null, null, null)",
)
"""Merged into both tables, so that deletion vectors exist."""

COLUMN_CHANGES: Final = (
    """alter table public."Many Types" rename label to title""",
    """alter table public."Many Types" drop gone""",
    """alter table public."Many Types" add later int""",
    """update public."Many Types" set title = 'renamed', later = 5 where id = 1""",
    "alter table public.orders rename status to state",
    "alter table public.orders drop note",
    "update public.orders set state = 'sent' where id % 11 = 0",
)

LAST_CHANGES: Final = (
    "update public.orders set amount = amount + 1 where id % 13 = 0",
    "delete from public.orders where id between 40 and 60",
)
