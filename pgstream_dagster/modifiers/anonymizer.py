"""
Functions of PostgreSQL Anonymizer, asked of a server: one query for every value.

The one module of this folder with I/O. Its server need not be the source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from pgstream_dagster.config.transformers import PgAnonymizer
from pgstream_dagster.modifiers.unfit import Away, Unanswered, Unfit

_SALTED: Final = "pseudo_"

CONNECT_SECONDS: Final = 10
"""A server that does not answer by then is away."""

_AWAY: Final = ("08", "53", "57")
"""Classes of SQLSTATEs: connections, resources, an administrator."""

_OF_VALUES: Final = ("22", "23", "P0")
"""What a function says about a value: data, constraints, its own errors."""

_VALUE: Final = sql.Placeholder("value")


class Sessions:
    """One session per server, made at the first value, and again after a lost connection."""

    def __init__(self) -> None:
        self._sessions: dict[str, psycopg.Connection] = {}

    def session(self, dsn: str) -> psycopg.Connection:
        """The session with a server. Raises `psycopg.Error`."""
        session = self._sessions.get(dsn)
        if session is None or session.closed:
            session = psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
            self._sessions[dsn] = session
        return session

    def close(self) -> None:
        """End all sessions; the next value makes new ones."""
        while self._sessions:
            self._sessions.popitem()[1].close()


def anonymizer(
    rule: PgAnonymizer, dsn: str, type_name: str, sessions: Sessions
) -> Callable[[str], str | None]:
    """What calls the function of a rule; raises `Unfit` with the server's SQLSTATE."""
    statement = query(rule, type_name)
    parameters = rule.model_dump(exclude={"name", "allow_uniqueness_loss", "postgres_url"})

    def called(text: str) -> str | None:
        try:
            session = sessions.session(dsn)
            row = session.execute(statement, {**parameters, "value": text}).fetchone()
        except psycopg.Error as error:
            raise _failure(error.sqlstate) from None  # the server's message may repeat the value
        return None if row is None else row[0]

    return called


def _failure(state: str | None) -> Unfit:
    """What an SQLSTATE means; `None`: the server does not answer."""
    if state is None or state[:2] in _AWAY:
        return Away(f"no answer ({state or 'no connection'})")
    reason = f"the server refuses the function ({state})"
    return Unfit(reason) if state[:2] in _OF_VALUES else Unanswered(reason)


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
