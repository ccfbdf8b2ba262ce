"""
Capture real pgoutput bytes: `python -m tests.captured.capture [MAJOR...]`.

Runs `WORKLOAD` and some large transactions on an embedded Postgres while two walsenders send,
one with protocol 1, one with protocol 2 and `streaming 'on'`, and writes `pg<major>.json.gz`
beside this file: the messages of both (hex, without the XLogData header), the rows that the tables
have in the end, as their output functions print them, and the tables' keys.
"""

from __future__ import annotations

import gzip
import json
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import pq

from pgstream_dagster.embedded.postgres import Postgres
from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.connect import connect, replication

FOLDER: Final = Path(__file__).parent
SETTINGS: Final = {"logical_decoding_work_mem": "64kB", "wal_writer_delay": "10ms"}
OPTIONS: Final = {
    "1": "proto_version '1'",
    "2": "proto_version '2', streaming 'on'",
}
WAIT_SECONDS: Final = 30

TABLES: Final = '''
create type mood as enum ('sad', 'ok', 'happy');
create table plain (id int primary key, a text, n numeric, j jsonb, at timestamptz, raw bytea,
    tags text[], flag boolean, m mood);
create table toasted (id int primary key, big text, small int);
alter table toasted alter big set storage external;
create table toasted_key (k text primary key, big text, small int);
alter table toasted_key alter k set storage external, alter big set storage external;
create table keyless (a int, b text);
alter table keyless replica identity full;
create table whole (id int primary key, big text, small int);
alter table whole alter big set storage external;
alter table whole replica identity full;
create table by_index (id int primary key, code text not null unique, note text);
alter table by_index replica identity using index by_index_code_key;
create table two_keys (v int, b int, a text, primary key (b, a));
create table inserts (a int, b text);
alter table inserts replica identity nothing;
create schema "odd ""space""";
create table "odd ""space"""."Täble.1" ("Ünï cøde" int primary key, "a""b" text, "\U0001f418" text);
create table sales (id int, region text, amount int, primary key (id, region))
    partition by list (region);
create table sales_n partition of sales for values in ('n');
create table sales_s (amount int, region text not null, id int not null);
alter table sales attach partition sales_s for values in ('s');
create table large (id int primary key, a text);
create table emptied (id int primary key);
create table emptied_too (id int primary key);
create publication everything for all tables with (publish_via_partition_root = true)
'''

WORKLOAD: Final = r'''
insert into plain values (1, 'one', 1.50, '{"a": [1, null]}', '2024-02-29 12:00+02', '\x00ff', '{a,NULL,"b,c"}', true, 'ok'),
    (2, '', 'NaN', null, 'infinity', '', '{}', false, 'sad'), (3, null, -0.000, '"é"', '0044-03-15 BC', null, null, null, null);
update plain set a = 'changed, and longer than twelve bytes' where id = 1;
update plain set id = 20, a = U&'\+01F40D' where id = 2;
delete from plain where id = 3;
insert into toasted select 1, string_agg(md5(i::text), ''), 1 from generate_series(1, 300) i;
update toasted set small = 2;
update toasted set id = 2;
update toasted set big = null;
update toasted set big = repeat('é', 3000);
insert into toasted_key select string_agg(md5(i::text), ''), string_agg(md5(i::text || 'x'), ''), 1 from generate_series(1, 80) i;
update toasted_key set small = 2;
update toasted_key set big = 'short';
insert into keyless values (1, 'twice'), (1, 'twice'), (2, null), (3, '');
delete from keyless where ctid = (select min(ctid) from keyless where a = 1);
update keyless set b = 'now set' where a = 2;
update keyless set b = null where a = 3;
insert into whole select 1, string_agg(md5(i::text), ''), 1 from generate_series(1, 300) i;
update whole set small = 2;
update whole set id = 7;
update whole set small = small;
insert into whole values (8, 'gone', 1);
delete from whole where id = 8;
insert into by_index values (1, 'x', 'first'), (2, 'y', 'second'), (3, 'z', 'third');
update by_index set note = 'again' where id = 1;
update by_index set id = 10 where id = 1;
update by_index set code = 'yy' where id = 2;
delete from by_index where id = 3;
insert into two_keys values (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'a');
update two_keys set v = 11 where b = 1 and a = 'a';
update two_keys set a = 'c' where b = 1 and a = 'b';
delete from two_keys where b = 2;
insert into inserts values (1, 'a'), (1, 'a'), (null, null);
insert into "odd ""space"""."Täble.1" values (1, 'ä', '🐘'), (2, '', null);
update "odd ""space"""."Täble.1" set "🐘" = '🐍' where "Ünï cøde" = 2;
insert into sales values (1, 'n', 10), (2, 's', 20);
update sales set region = 'n' where id = 2;
update sales set amount = 30 where id = 1;
begin; insert into emptied values (1), (2); truncate emptied, emptied_too; insert into emptied values (3); commit;
insert into emptied_too values (1);
truncate emptied_too restart identity cascade;
begin; insert into plain (id) values (100); rollback;
begin; insert into plain (id) values (101); savepoint s; insert into plain (id) values (102); rollback to s; insert into plain (id) values (103); commit;
begin; select pg_logical_emit_message(true, 'note', 'text é'); select pg_logical_emit_message(true, 'bytes', '\xff00'::bytea); insert into plain (id) values (104); commit;
select pg_logical_emit_message(false, 'floating', 'not in any transaction');
begin; alter table plain add extra int default 5; insert into plain (id, extra) values (105, 6); alter table plain drop a; update plain set n = 1 where id = 105; commit;
alter table by_index rename note to remark;
update by_index set remark = 'renamed' where id = 10
'''

LARGE: Final = "insert into large select i, 'row ' || i from generate_series({0}, {1}) i"


def main(majors: list[int]) -> None:
    for major in majors:
        with Postgres(major, settings=SETTINGS) as server:
            said = json.dumps(capture(server.dsn), ensure_ascii=False, indent=0)
        path = FOLDER / f"pg{major}.json.gz"
        path.write_bytes(gzip.compress(said.encode(), mtime=0))
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def capture(dsn: str) -> dict[str, Any]:
    """The messages of the workload, by protocol, and what the tables look like afterwards."""
    with connect(dsn) as sql:
        _run(sql, "set search_path = public")
        _run(sql, TABLES)
        senders = {version: Sender(dsn, version) for version in OPTIONS}
        try:
            _run(sql, WORKLOAD)
            _large_transactions(dsn, sql, senders["2"])
            end = Lsn.parse(_one(sql, "select pg_current_wal_flush_lsn()::text"))
            messages = {version: sender.until(end) for version, sender in senders.items()}
        finally:
            for sender in senders.values():
                sender.close()
        return {
            "server": _one(sql, "select version()"),
            "messages": {v: [message.hex() for message in m] for v, m in messages.items()},
            "tables": list(_tables(sql)),
        }


def _large_transactions(dsn: str, sql: psycopg.Connection[Any], streamed: Sender) -> None:
    """
    Streamed ones: committed with an aborted part, rolled back, and small ones in between.

    A part is rolled back only after the walsender streamed of it: later servers leave out what
    they know to be aborted.
    """
    with connect(dsn) as other:
        _run(sql, "begin; " + LARGE.format(1, 900))
        streamed.await_stream()
        _run(other, "insert into public.plain (id) values (201)")
        _run(sql, "savepoint s; alter table large add gone text; " + LARGE.format(2001, 2800))
        streamed.await_stream()
        _run(sql, "rollback to s; alter table large add b text default 'd'")
        _run(sql, "update large set a = 'ä' || id where id <= 300; delete from large where id = 7")
        _run(sql, "select pg_logical_emit_message(true, 'note', 'in a stream')")
        _run(sql, "savepoint s2; insert into plain (id) values (202); release s2")
        _run(sql, "truncate emptied")
        _run(sql, "commit")
        _run(other, "insert into public.large values (5000, null, 'after')")
        _run(sql, "begin; " + LARGE.format(3001, 3900).replace("' || i", "' || i, 'x'"))
        streamed.await_stream()
        _run(sql, "rollback")
        _run(other, "delete from public.plain where id = 201")


def _run(sql: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        sql.execute(statement.encode())


def _one(sql: psycopg.Connection[Any], query: str) -> str:
    row = sql.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def _tables(sql: psycopg.Connection[Any]) -> Iterator[dict[str, Any]]:
    """Name, identity, key columns and rows of every published table."""
    found = sql.execute("""
        select c.oid::int8, c.oid::regclass::text, array(
            select a.attname::text from pg_catalog.pg_index i, unnest(i.indkey) with ordinality k (n, at)
            join pg_catalog.pg_attribute a on a.attnum = k.n
            where i.indrelid = c.oid and a.attrelid = c.oid
            and case c.relreplident when 'i' then i.indisreplident when 'n' then false else i.indisprimary end
            order by k.at)
        from pg_catalog.pg_class c
        where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace >= 2200 and c.relname !~ '^sql_'
        order by c.oid""").fetchall()
    for oid, name, key in found:
        result = sql.execute(f"select * from {name}".encode()).pgresult  # pyright: ignore
        assert result is not None
        names = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
        rows = [
            [_text(result, row, at) for at in range(len(names))] for row in range(result.ntuples)
        ]
        yield {"relation_id": oid, "name": name, "key": key, "columns": names, "rows": rows}


def _text(result: pq.abc.PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else bytes(value).decode()


class Sender:
    """A walsender's messages, as they come."""

    def __init__(self, dsn: str, version: str) -> None:
        with connect(dsn) as sql:
            sql.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", [f"capture_{version}"]
            )
        self._connection = replication(dsn)
        self._messages: list[bytes] = []
        options = f"{OPTIONS[version]}, publication_names 'everything', messages 'true'"
        start = f"START_REPLICATION SLOT capture_{version} LOGICAL 0/0 ({options})"
        result = self._connection.exec_(start.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message

    def await_stream(self) -> None:
        """Until one more streamed block has ended."""
        while self._next()[:1] != b"E":
            pass

    def until(self, end: Lsn) -> list[bytes]:
        """Every message up to position `end`."""
        while self._sent < end:
            self._next()
        return self._messages

    _sent = Lsn(0)

    def _next(self) -> bytes:
        """The next message; empty for a keepalive."""
        while True:
            size, data = self._connection.get_copy_data(1)
            if size == 0:
                if not select.select([self._connection.socket], [], [], WAIT_SECONDS)[0]:
                    raise TimeoutError("the walsender is silent")
                self._connection.consume_input()
                continue
            assert size > 0, self._connection.error_message
            raw = bytes(data)
            if raw[:1] == b"k":
                self._sent = Lsn(int.from_bytes(raw[1:9]))
                return b""
            self._messages.append(raw[25:])
            return raw[25:]

    def close(self) -> None:
        self._connection.finish()


if __name__ == "__main__":
    main([int(major) for major in sys.argv[1:]] or [15, 18])
