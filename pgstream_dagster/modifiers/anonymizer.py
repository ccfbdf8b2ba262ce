"""
Functions of PostgreSQL Anonymizer, asked of a server: one query for every value.

The one module of this folder with I/O. Its server need not be the source.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from pgstream_dagster.config.transformers import PgAnonymizer
from pgstream_dagster.modifiers.unfit import Unfit

_REPEATABLE: Final = ("pseudo_", "hash", "digest", "partial", "partial_email", "image_blur")
_SALTED: Final = "pseudo_"

_VALUE: Final = sql.Placeholder("value")


def is_repeatable(rule: PgAnonymizer) -> bool:
    """Whether the function gives the same result each time."""
    function = rule.anon_function.removeprefix("anon.")
    return function.startswith(_SALTED) or function in _REPEATABLE


class Anonymizer:
    """Calls one function; connects at the first value, and again after a lost connection."""

    def __init__(self, rule: PgAnonymizer, dsn: str, type_name: str) -> None:
        self._rule, self._dsn = rule, dsn
        self._query = query(rule, type_name)
        self._parameters = {
            **rule.model_dump(exclude={"name", "allow_uniqueness_loss", "postgres_url"}),
        }
        self._session: psycopg.Connection | None = None

    def __call__(self, text: str) -> str | None:
        """The function's result as text. Raises `Unfit` with the server's SQLSTATE."""
        try:
            if self._session is None or self._session.closed:
                self._session = psycopg.connect(self._dsn, autocommit=True)
            row = self._session.execute(self._query, {**self._parameters, "value": text}).fetchone()
        except psycopg.Error as error:
            state = error.sqlstate or "no connection"
            # from None: the server's message may repeat the value
            raise Unfit(f"the server refuses the function ({state})") from None
        return None if row is None else row[0]

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()


def query(rule: PgAnonymizer, type_name: str) -> sql.Composed:
    """The query of a rule, with the value as parameter `value`."""
    name = rule.anon_function.removeprefix("anon.")
    typed = sql.SQL("{}::text::{}").format(_VALUE, sql.SQL(type_name))  # pyright: ignore[reportArgumentType] - of the catalog
    return sql.SQL("select {}({})::text").format(
        sql.Identifier("anon", name), sql.SQL(", ").join(_arguments(rule, name, typed))
    )


def _arguments(rule: PgAnonymizer, name: str, typed: sql.Composed) -> list[sql.Composable]:
    """What a function takes."""
    text = sql.SQL("{}::text").format(_VALUE)

    def given(parameter: str, type_name: str = "text") -> sql.Composable:
        return sql.SQL("{}::{}").format(sql.Placeholder(parameter), sql.SQL(type_name))  # pyright: ignore[reportArgumentType]

    if name.startswith(_SALTED):
        return [typed, given("salt")] if rule.salt else [typed]
    if name in ("hash", "partial_email", "random_hash"):
        return [text]
    fixed: dict[str, list[sql.Composable]] = {
        "digest": [text, given("salt"), given("hash_algorithm")],
        "noise": [typed, given("ratio", "numeric")],
        "dnoise": [typed, given("interval", "interval")],
        "image_blur": [typed, given("sigma", "numeric")],
        "partial": [
            *(text, given("mask_prefix_count", "int"), given("mask")),
            given("mask_suffix_count", "int"),
        ],
        "random_string": [given("count", "int")],
        "random_phone": [given("prefix")],
        "lorem_ipsum": [
            sql.SQL("{} := {}").format(sql.Identifier(rule.unit), given("count", "int"))
        ],
    }
    if name in fixed:
        return fixed[name]
    if name.endswith("_between"):
        kinds = {"date": "timestamptz", "int": "int", "bigint": "bigint"}
        kind = kinds.get(name.removeprefix("random_").removesuffix("_between"), "text")
        return [given("min", kind), given("max", kind)]
    if name.startswith("random_in_"):
        return [given("range", name.removeprefix("random_in_") if "range" in name else "text")]
    return [given("locale")] if name.endswith("_locale") else []
