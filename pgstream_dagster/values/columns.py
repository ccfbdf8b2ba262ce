"""
A column of values as JSON: what a rendering makes of each value, without Python per value. Pure.

Nearly all values are written as they are, or in quotes. Arrow finds these and renders them; the
rendering itself is called for the others only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgstream_dagster.values.exact import Render, are_json, exact, string

_Usual: TypeAlias = "tuple[pa.Array, pa.Array]"
"""The values as they are usually rendered, and which of them that is right for."""

_INTEGER: Final = r"\A-?(?:0|[1-9][0-9]*)\z"
_NUMBER: Final = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\z"
_ESCAPED: Final = r'["\\\x00-\x1f]'


def rendered(render: Render, values: pa.Array) -> pa.Array:
    """What `render` makes of each text; `null` for NULL."""
    usual = _USUAL.get(render)
    if usual is None:
        return _texts(render, values).fill_null("null")
    texts, fits = usual(values)
    others = pc.invert(fits)
    if pc.any(others).as_py():
        replacements = _texts(render, values.filter(others))
        texts = pc.replace_with_mask(texts, others.fill_null(False), replacements)  # noqa: FBT003
    return texts.fill_null("null")


def _texts(render: Render, values: pa.Array) -> pa.Array:
    texts = (None if text is None else render(text) for text in values.to_pylist())
    return pa.array(texts, pa.string())


def _matching(pattern: str) -> Callable[[pa.Array], _Usual]:
    return lambda values: (values, pc.match_substring_regex(values, pattern))


def _boolean(values: pa.Array) -> _Usual:
    is_true = pc.equal(values, "t")
    return pc.if_else(is_true, "true", "false"), pc.or_(is_true, pc.equal(values, "f"))


def _string(values: pa.Array) -> _Usual:
    texts = pc.binary_join_element_wise('"', values, '"', "")
    octets = _octets(values)
    if ((octets < ord(" ")) | (octets == ord('"')) | (octets == ord("\\"))).any():
        return texts, pc.invert(pc.match_substring_regex(values, _ESCAPED))
    return texts, values.is_valid()


def _json(values: pa.Array) -> _Usual:
    fit = bool((_octets(values) >= ord(" ")).all()) and are_json(values.drop_null().to_pylist())
    return values, pa.array(np.full(len(values), fit))


def _octets(values: pa.Array) -> np.ndarray:
    """The bytes of all texts, one after the other."""
    _, offsets, data = values.buffers()
    if data is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


_USUAL: Final[Mapping[Render, Callable[[pa.Array], _Usual]]] = {
    string: _string,
    exact("bool"): _boolean,
    exact("int8"): _matching(_INTEGER),
    exact("numeric"): _matching(_NUMBER),
    exact("json"): _json,
}
