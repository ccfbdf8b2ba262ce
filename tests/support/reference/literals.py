"""Values of Postgres' types as texts that its input functions read, drawn at random."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

from pgstream_dagster.values.types import Kind
from tests.support.reference import texts

Draw = Callable[[Random], str]

CREATED: Final = (
    "create extension hstore",
    "create extension citext",
    "create extension ltree",
    "create type mood as enum ('happy', 'so \"so\"', 'NULL', '{}')",
    "create type pair as (a int, b text)",
    "create type spans as range (subtype = float8)",
    "create domain cents as numeric(12,2)",
    "create domain small as int4 check (value <= 1000)",
)
"""Statements that make the types of users."""


def _integer(bits: int, random: Random) -> str:
    most = (1 << bits - 1) - 1
    return str(random.choice([0, 1, -1, most, -most - 1, random.randint(-most - 1, most)]))


def _unsigned(random: Random) -> str:
    return str(random.choice([0, 1, (1 << 32) - 1, random.getrandbits(32)]))


def _float(layout: str, size: int, random: Random) -> str:
    """Any bits; mostly numbers as people have them."""
    if random.random() < 0.3:
        return random.choice(["NaN", "Infinity", "-Infinity", "-0", "0", "1e20", "1e-7", "0.1"])
    if random.random() < 0.3:
        return f"{random.uniform(-1e6, 1e6):.{random.randint(0, 8)}f}"
    (number,) = struct.unpack(layout, random.randbytes(size))
    return repr(number) if math.isfinite(number) else "NaN"


def _numeric(digits: int, scale: int, random: Random) -> str:
    """Of up to so many digits before and after the point; sometimes not a number."""
    if random.random() < 0.05:
        return "NaN"
    whole = "".join(random.choices("0123456789", k=random.randint(0, digits))) or "0"
    fraction = "".join(random.choices("0123456789", k=random.randint(0, scale)))
    return random.choice(["", "-"]) + whole + (f".{fraction}" if fraction else "")


def _thousands(random: Random) -> str:
    return str(random.randint(-99, 99) * 1000)


def _hundredths(random: Random) -> str:
    return f"{random.uniform(-0.0099, 0.0099):.5f}"


def _any_numeric(random: Random) -> str:
    if random.random() < 0.1:
        return random.choice(["Infinity", "-Infinity", "NaN", "-0", "0.000", "1e30", "1e-30"])
    return _numeric(random.choice([1, 5, 28, 40, 400]), random.choice([0, 2, 10, 12, 300]), random)


def _day(random: Random) -> str:
    year = random.choice([1, 999, 1582, 1969, 1970, 2024, 9999, random.randint(1, 9999)])
    return f"{year:04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _date(random: Random) -> str:
    if random.random() < 0.2:
        return random.choice(
            [
                "infinity",
                "-infinity",
                "4713-01-01 BC",
                "0001-12-31 BC",
                "10000-01-01",
                "294275-12-31",
            ]
        )
    return _day(random)


def _clock(random: Random) -> str:
    if random.random() < 0.1:
        return random.choice(["24:00:00", "23:59:59.999999", "00:00:00", "02:30:00"])
    fraction = random.choice(["", ".5", ".123456", ".100000", ".000001"])
    hour, minute, second = random.randint(0, 23), random.randint(0, 59), random.randint(0, 59)
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


def _timestamp(zones: tuple[str, ...], random: Random) -> str:
    day = _date(random)
    if "infinity" in day:
        return day
    day, _, era = day.partition(" ")
    return f"{day} {_clock(random)}{random.choice(zones)} {era}".rstrip()


ZONES: Final = ("+00", "+05:30", "-03", "+14", "-12", "+01:23:45")


def _bytes(random: Random) -> str:
    return "\\x" + random.randbytes(random.choice([0, 1, 2, 40])).hex()


def _kind(kind: Kind, random: Random) -> str:
    return texts.drawn(random, kind)[0]


def _as_number(text: str) -> tuple[bool, float]:
    """Its place in Postgres' order: NaN is last."""
    return text == "NaN", float(text)


def _span(bound: Draw, key: Callable[[str], object], random: Random) -> str:
    """A range whose bounds are in order."""
    if random.random() < 0.1:
        return "empty"
    lower, upper = sorted([bound(random), bound(random)], key=key)  # type: ignore[type-var]
    bounds = ["" if random.random() < 0.2 else f'"{bound}"' for bound in (lower, upper)]
    return f"{random.choice('[(')}{','.join(bounds)}{random.choice('])')}"


def _spans(span: Draw, random: Random) -> str:
    return "{" + ",".join(span(random) for _ in range(random.randint(0, 3))) + "}"


def _small_integer(random: Random) -> str:
    return str(random.randint(-1000, 1000))


def _any_time(day: Draw, suffix: str, random: Random) -> str:
    return f"{day(random)} {random.randint(0, 23):02}:00:00{suffix}"


_DAYS: Final = partial(_span, _day, str)
_STAMPS: Final = partial(_span, partial(_any_time, _day, ".5"), str)
_STAMPS_TZ: Final = partial(_span, partial(_any_time, _day, "+02"), str)
_NUMBERS: Final = partial(_span, partial(_numeric, 6, 3), _as_number)
_WHOLE: Final = partial(_span, _small_integer, int)


def _sample(*values: str) -> Draw:
    return lambda random: random.choice(values)


LITERALS: Final[Mapping[str, Draw]] = {
    "bool": _sample("true", "false"),
    "int2": partial(_integer, 16),
    "int4": partial(_integer, 32),
    "small": _small_integer,
    "int8": partial(_integer, 64),
    **dict.fromkeys(["oid", "xid", "cid"], _unsigned),
    "float4": partial(_float, "f", 4),
    "float8": partial(_float, "d", 8),
    "numeric": _any_numeric,
    "numeric(10,2)": partial(_numeric, 8, 2),
    "numeric(38,10)": partial(_numeric, 28, 10),
    "numeric(38,38)": partial(_numeric, 0, 38),
    "numeric(39,2)": partial(_numeric, 37, 2),
    "numeric(2,-3)": _thousands,
    "numeric(3,5)": _hundredths,
    "cents": partial(_numeric, 10, 2),
    "date": _date,
    "timestamp": partial(_timestamp, ("",)),
    "timestamp(3)": partial(_timestamp, ("",)),
    "timestamptz": partial(_timestamp, ZONES),
    "bytea": _bytes,
    "text": texts.text,
    "citext": texts.text,
    "varchar(12)": lambda random: texts.text(random)[:12],
    "bpchar": texts.text,
    "json": partial(_kind, Kind.JSON),
    "jsonb": partial(_kind, Kind.JSON),
    "hstore": partial(_kind, Kind.HSTORE),
    "int4range": _WHOLE,
    "int8range": _WHOLE,
    "numrange": _NUMBERS,
    "daterange": _DAYS,
    "tsrange": _STAMPS,
    "tstzrange": _STAMPS_TZ,
    "int4multirange": partial(_spans, _WHOLE),
    "int8multirange": partial(_spans, _WHOLE),
    "nummultirange": partial(_spans, _NUMBERS),
    "datemultirange": partial(_spans, _DAYS),
    "tsmultirange": partial(_spans, _STAMPS),
    "tstzmultirange": partial(_spans, _STAMPS_TZ),
    "spans": partial(_span, partial(_float, "f", 4), _as_number),
    "mood": _sample("happy", 'so "so"', "NULL", "{}"),
    "pair": _sample("(1,x)", '(,"a ""b"", c")', "(,)"),
    "uuid": _sample("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "interval": _sample("1 year 2 mons -3 days 04:05:06.789", "-1 mon +2 days", "0"),
    "time": _clock,
    "timetz": lambda random: _clock(random) + random.choice(ZONES),
    "money": _sample("$1,234.50", "-1"),
    "bit(3)": _sample("101", "000"),
    "varbit": _sample("", "10101"),
    "inet": _sample("10.0.0.1/8", "::1", "192.168.0.1"),
    "cidr": _sample("10.0.0.0/8"),
    "macaddr": _sample("08:00:2b:01:02:03"),
    "point": _sample("(1,2)", "(1e+20,-0)"),
    "box": _sample("(1,1),(0,0)"),
    "path": _sample("((0,0),(1,1))", "[(0,0),(1,1)]"),
    "xml": _sample("<a>x</a>", "text"),
    "tsvector": _sample("'a':1 'b c':2A", ""),
    "ltree": _sample("a.b.c", ""),
    "pg_lsn": _sample("16/B374D848"),
    "xid8": _sample("18446744073709551615"),
    '"char"': _sample("x", ""),
    "name": _sample("a b"),
    "int2vector": _sample("1 2 3"),
    "regclass": _sample("pg_class"),
}
"""By type as SQL writes it."""

ARRAYS: Final = tuple(
    name
    for name in LITERALS
    if name not in ("cents", "small", "timestamp(3)", "varchar(12)", "numeric(39,2)", "bit(3)")
)
"""The types whose arrays are drawn too."""


def array(name: str, random: Random) -> str:
    """An array, now and then of two dimensions or with bounds of its own."""
    draw, chance = LITERALS[name], random.random()
    if chance < 0.1:
        return "{}"
    items = [None if random.random() < 0.2 else draw(random) for _ in range(random.randint(1, 4))]
    output = _with_separator(name, items)
    if chance < 0.2:
        return f"{{{output},{output}}}" if name != "box" else f"{{{output};{output}}}"
    return f"[0:{len(items) - 1}]={output}" if chance < 0.3 else output


def _with_separator(name: str, items: list[str | None]) -> str:
    if name == "box":
        return "{" + ";".join("NULL" if item is None else item for item in items) + "}"
    return texts.array_out(items)
