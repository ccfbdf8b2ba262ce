"""
Values of every kind, as the texts that Postgres' output functions make of them.

Written from the manual's rules of arrays, hstore and ranges, and not from the renderings: a value
is drawn together with what a document must say of it.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, Final

from pgstream_dagster.values.kinds import Kind

CANNOT: Final = object()
"""What a document says of a value that its field cannot hold: nothing."""

CHARACTERS: Final = (
    *"abcNULtf09 ,;:{}[]()\"'\\/=>.-+eE|$&<%\n\t\r\x08\x0c\x01\x02\x03\x1f\x7f",
    *"\x85\xa0é\u0660\u2028\u2029\ufeff\ufffd\U0001f40d\U0010ffff",
)
WORDS: Final = ("", "NULL", "null", "{}", "[]", '"', "\\", '\\"', '"=>NULL', "$1", "\\u0001", "\\n")

Drawn = tuple[str, Any]


def text(random: Random) -> str:
    """Anything but NUL."""
    if random.random() < 0.3:
        return random.choice(WORDS)
    return "".join(random.choices(CHARACTERS, k=random.randint(0, 12)))


def drawn(random: Random, kind: Kind, is_array: bool = False) -> Drawn:
    """One value of a kind and its meaning, or an array of such."""
    if is_array:
        return _array(random, kind)
    if kind.endswith("multirange"):
        return _multirange(random, Kind(kind.replace("multirange", "range")))
    if kind.endswith("range"):
        return _range(random, kind)
    return _SCALARS[kind](random)


def array_out(elements: list[Any]) -> str:
    """
    An array as `array_out` prints it: strings, `None` for NULL, lists for further dimensions.

    Source:
        https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    return f"{{{','.join(map(_element, elements))}}}"


def _element(element: Any) -> str:
    if element is None:
        return "NULL"
    if isinstance(element, list):
        return array_out(element)
    if element == "" or element.upper() == "NULL" or re.search(r'[{},"\\ \t\n\r\v\f]', element):
        return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return element


def _array(random: Random, kind: Kind) -> Drawn:
    dimensions = random.choice([1, 1, 1, 2, 3])
    sizes = [random.randint(1, 3) for _ in range(dimensions)]
    if random.random() < 0.1:
        return "{}", []
    cannot = False

    def nested(left: list[int]) -> tuple[list[Any], list[Any]]:
        nonlocal cannot
        texts: list[Any] = []
        meanings: list[Any] = []
        for _ in range(left[0]):
            if left[1:]:
                output, meant = nested(left[1:])
            elif random.random() < 0.2:
                output, meant = None, None
            else:
                output, meant = drawn(random, kind)
                if meant is CANNOT and random.random() < 0.8:
                    output, meant = None, None
                cannot |= meant is CANNOT
            texts.append(output)
            meanings.append(meant)
        return texts, meanings

    texts, meanings = nested(sizes)
    bounds = "".join(f"[{random.randint(-1, 1)}:5]" for _ in sizes) + "="
    output = (bounds if random.random() < 0.2 else "") + array_out(texts)
    return output, CANNOT if cannot else meanings


def _integer(random: Random) -> Drawn:
    number = random.choice([0, -1, 7, random.randint(-(1 << 63), (1 << 63) - 1)])
    return str(number), number


def _float(random: Random) -> Drawn:
    output = random.choice(["NaN", "Infinity", "-Infinity", "-0", "0", "1e+20", "1e-07", "5e-324"])
    if random.random() < 0.5:
        output = f"{random.uniform(-9, 9) * 10.0 ** random.randint(-300, 300)!r}".removesuffix(".0")
    return output, CANNOT if output.strip("-") in ("NaN", "Infinity") else float(output)


def _numeric(random: Random) -> Drawn:
    digits = random.choice([1, 2, 30, 308, 309, 999])
    whole = "".join(random.choices("123456789", k=digits))
    fraction = "".join(random.choices("0123456789", k=random.choice([0, 0, 2, 30, 600, 1000])))
    output = random.choice(["", "-"]) + whole + (f".{fraction}" if fraction else "")
    if random.random() < 0.2:
        output = random.choice(["NaN", "Infinity", "-Infinity", "0", "0.00", "1.10"])
        return output, CANNOT if output[-1] in "Ny" else float(output)
    return output, CANNOT if digits > 308 or len(output) > 1000 else json.loads(output)


def _boolean(random: Random) -> Drawn:
    return random.choice([("t", True), ("f", False)])


def _date(random: Random) -> Drawn:
    if random.random() < 0.2:
        return random.choice(["infinity", "-infinity", "0044-03-15 BC", "12024-01-01"]), CANNOT
    year, month, day = random.randint(1, 9999), random.randint(1, 12), random.randint(1, 28)
    date = f"{year:04}-{month:02}-{day:02}"
    return date, date


def _timestamp(random: Random, zone: str = "", zulu: str = "") -> Drawn:
    day, meant = _date(random)
    if "infinity" in day:
        return day, CANNOT
    fraction = random.choice(["", ".5", ".123", ".123456", ".000001"])
    clock = f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:59{fraction}"
    if meant is CANNOT:
        return f"{day.removesuffix(' BC')} {clock}{zone}{day[10:] if 'BC' in day else ''}", CANNOT
    return f"{day} {clock}{zone}", f"{meant}T{clock}{zulu}"


def _timestamptz(random: Random) -> Drawn:
    return _timestamp(random, "+00", "Z")


def _json(random: Random) -> Drawn:
    value = _json_value(random, 3)
    written = json.dumps(
        value,
        ensure_ascii=random.random() < 0.5,
        indent=random.choice([None, None, 1, "\t"]),
    )
    if random.random() < 0.05:
        digits = random.choice([900, 999, 1200])
        value = [int("1" * digits)]
        return f"[{'1' * digits}]", CANNOT if digits > 1000 else value
    return written, value


def _json_value(random: Random, depth: int) -> Any:
    if depth and random.random() < 0.6:
        inner = [_json_value(random, depth - 1) for _ in range(random.randint(0, 3))]
        return inner if random.random() < 0.5 else {text(random): value for value in inner}
    return random.choice([None, True, False, 0, -1.5, 1e300, 12345678901234567890, text(random)])


def _hstore(random: Random) -> Drawn:
    pairs = {
        text(random): None if random.random() < 0.2 else text(random)
        for _ in range(random.randint(0, 4))
    }

    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    entries = [f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items()]
    return ", ".join(entries), pairs


def _vector(random: Random) -> Drawn:
    numbers = [random.choice([0, 1, -2.5, 3e-05, 1e20]) for _ in range(random.randint(1, 5))]
    return f"[{','.join(map(repr, numbers))}]", numbers


def _text(random: Random) -> Drawn:
    value = text(random)
    return value, value


def _range(random: Random, kind: Kind) -> Drawn:
    if random.random() < 0.1:
        return "empty", CANNOT
    element = {"integer": Kind.INTEGER, "numeric": Kind.NUMERIC}.get(kind.split(" ")[0])
    element = element or Kind(kind.removesuffix(" range"))
    opening, closing = random.choice("[("), random.choice("])")
    meant: dict[str, Any] = {}
    bounds: list[str] = []
    for name, including, infinite in (
        ("gt", opening == "[", "-infinity"),
        ("lt", closing == "]", "infinity"),
    ):
        output, value = "", None
        if random.random() < 0.8:
            output, value = drawn(random, element)
            if output.lower() == infinite:
                value = None
            elif value is CANNOT:
                return _range(random, kind)  # such bounds have a test of their own
            else:
                meant[f"{name}e" if including else name] = value
        bounds.append(f'"{output}"' if " " in output else output)
    return f"{opening}{','.join(bounds)}{closing}", meant


def _multirange(random: Random, kind: Kind) -> Drawn:
    ranges = [_range(random, kind) for _ in range(random.randint(0, 3))]
    kept = [(output, meant) for output, meant in ranges if output != "empty"]
    return f"{{{','.join(element for element, _ in kept)}}}", [meant for _, meant in kept]


_SCALARS: Final = {
    Kind.TEXT: _text,
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.NUMERIC: _numeric,
    Kind.BOOLEAN: _boolean,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
    Kind.JSON: _json,
    Kind.HSTORE: _hstore,
    Kind.VECTOR: _vector,
}
