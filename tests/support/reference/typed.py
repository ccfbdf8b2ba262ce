"""
A typed value as a text that Postgres reads: the oracle of typed tables.

Written from the manual's rules of input, and not from the casts: what Arrow says of a value goes
in, whatever its text was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, LiteralString, cast

import psycopg

from pgstream_dagster.tables.forms import Form
from pgstream_dagster.values.types import LakeType
from tests.support.reference.texts import array_out


def printed(
    connection: psycopg.Connection[Any], type_name: str, inputs: Sequence[str | None]
) -> list[str | None]:
    """What the type's output function prints of each input, as the stream would."""
    query = (
        f"select case when v is not null then format('%%s', v::{type_name}) end"
        " from unnest(%s::text[]) with ordinality as t (v, n) order by n"
    )
    rows = connection.execute(cast("LiteralString", query), [list(inputs)]).fetchall()
    return [text for (text,) in rows]


def readable(form: Form, value: Any) -> str | None:
    """A text that Postgres reads as the value."""
    return None if value is None else _WRITERS[form.lake](form, value)


def _number(_: Form, value: float) -> str:
    return repr(float(value))


def _bytes(_: Form, value: bytes) -> str:
    return "\\x" + value.hex()


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pairs(_: Form, value: Sequence[tuple[str, str | None]]) -> str:
    return ",".join(
        f"{_quoted(key)}=>{'NULL' if text is None else _quoted(text)}" for key, text in value
    )


def _vector(form: Form, value: Sequence[float]) -> str:
    return f"[{','.join(_number(form, number) for number in value)}]"


def _range(form: Form, value: Mapping[str, Any]) -> str:
    if value["is_empty"]:
        assert value["lower"] is value["upper"] is None
        return "empty"
    bounds = [readable(form.element, value[name]) for name in ("lower", "upper")]
    lower, upper = ("" if bound is None else _quoted(bound) for bound in bounds)
    opening, closing = "(["[value["lower_inclusive"]], ")]"[value["upper_inclusive"]]
    return f"{opening}{lower},{upper}{closing}"


def _ranges(form: Form, value: Sequence[Mapping[str, Any]]) -> str:
    return f"{{{','.join(_range(form.element, item) for item in value)}}}"


def _array(form: Form, value: Sequence[Any]) -> str:
    return array_out([readable(form.element, item) for item in value])


def _plain(_: Form, value: Any) -> str:
    return str(value)


_WRITERS: Final[Mapping[LakeType, Callable[[Form, Any], str]]] = {
    **dict.fromkeys(LakeType, _plain),
    LakeType.FLOAT: _number,
    LakeType.DOUBLE: _number,
    LakeType.DECIMAL: lambda _, value: format(value, "f"),
    LakeType.DATE: lambda _, value: value.isoformat(),
    LakeType.TIMESTAMP_NTZ: lambda _, value: value.isoformat(),
    LakeType.TIMESTAMP: lambda _, value: value.isoformat(),
    LakeType.BINARY: _bytes,
    LakeType.MAP: _pairs,
    LakeType.VECTOR: _vector,
    LakeType.RANGE: _range,
    LakeType.MULTIRANGE: _ranges,
    LakeType.ARRAY: _array,
}
