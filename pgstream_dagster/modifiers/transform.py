"""
A rule and a type become a function: the text of a value to the text that takes its place.

Each function gets what a value is about, not how Postgres prints it: of bytea the bytes, of an
array one element after the other, of char(n) the text without its padding, of citext lower case
where a secret is mixed in, because other case is the same value there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pgstream_dagster.config import transformers as rules
from pgstream_dagster.config.transformers import Transformer
from pgstream_dagster.modifiers import documents, generated, masking, people, scramble
from pgstream_dagster.modifiers.anonymizer import anonymizer
from pgstream_dagster.modifiers.arrays import mapped
from pgstream_dagster.modifiers.digest import choice, derived, number
from pgstream_dagster.modifiers.documents import Missing
from pgstream_dagster.modifiers.keys import Secrets, encryption, hashed
from pgstream_dagster.modifiers.templates import Rendered, template
from pgstream_dagster.modifiers.types import RANGES, element_type
from pgstream_dagster.modifiers.unfit import Unfit

Dynamic: TypeAlias = Mapping[str, "str | None"]
"""Parameters that other columns of the row give, by name."""

Transform: TypeAlias = Callable[[str, Dynamic], "str | None"]
"""A value's text to its successor's; raises `Unfit`. Never called with NULL."""

Plain: TypeAlias = Callable[[str], "str | None"]


def transform(rule: Transformer, value_type: str, type_name: str, secrets: Secrets) -> Transform:
    """
    What a rule does to the values of a type.

    Raises:
        MissingSetting: the key of the transformers or another secret is not in the environment.
        InvalidSetting: a secret is unusable.
    """
    element = element_type(value_type)
    element_name = type_name if element == value_type else type_name.removesuffix("[]")
    inner = _around(rule, element, _transform(rule, element, element_name, secrets))
    if element == value_type or isinstance(rule, rules.LiteralString | rules.Null):
        return inner
    return lambda text, dynamic: mapped(text, lambda item: inner(item, dynamic))


def _around(rule: Transformer, value_type: str, inner: Transform) -> Transform:
    """A transform, given a value's content instead of its text."""
    if isinstance(rule, rules.Noop | rules.LiteralString | rules.Null | rules.PgAnonymizer):
        return inner
    match value_type:
        case "bytea":
            return lambda text, dynamic: _as_bytea(inner(_content(text), dynamic))
        case "bpchar":
            return lambda text, dynamic: inner(text.rstrip(" "), dynamic)
        case "citext" if rule.needs_key:
            return lambda text, dynamic: inner(text.lower(), dynamic)
        case _:
            return inner


def _content(text: str) -> str:
    """The bytes of a bytea as text; what is not UTF-8 survives the way back."""
    try:
        return bytes.fromhex(text.removeprefix("\\x")).decode("utf-8", "surrogateescape")
    except ValueError:
        raise Unfit("it is no bytea in hexadecimal") from None


def _as_bytea(content: str | None) -> str | None:
    if content is None:
        return None
    return "\\x" + content.encode("utf-8", "surrogateescape").hex()


def _transform(rule: Transformer, value_type: str, type_name: str, secrets: Secrets) -> Transform:
    match rule:
        case rules.Hstore():
            return _hstore(rule, secrets)
        case rules.Json():
            return _json(rule, secrets)
        case rules.TemplateTransformer():
            return template(rule.template, secrets)
        case rules.PhoneNumber() | rules.GreenmaskFirstname() | rules.DateShift():
            return _with_parameter(rule, _secret(rule, secrets))
        case rules.PgAnonymizer():
            dsn = secrets.variable(rule.postgres_url, "the address of the anonymizer's server")
            return _plain(anonymizer(rule, dsn, type_name, secrets.sessions))
        case _:
            return _plain(_by_value(rule, value_type, secrets))


def _plain(function: Plain) -> Transform:
    return lambda text, dynamic: function(text)


def _secret(rule: Transformer, secrets: Secrets) -> bytes:
    """
    The secret of a transformer: the same for all columns, so that joins still join.

    A seed gives another one.
    """
    seed = getattr(rule, "seed", None)
    suffix = "" if seed is None else f" {seed}"
    return derived(secrets.key(), rule.name + suffix)


def _by_value(rule: Transformer, value_type: str, secrets: Secrets) -> Plain:  # noqa: PLR0911 - one case per transformer
    """The transforms that depend on the value alone, without the key."""
    match rule:
        case rules.Noop():
            return lambda text: text
        case rules.Null():
            return lambda text: None
        case rules.LiteralString(literal=literal):
            return lambda text: literal
        case rules.Masking(type="custom"):
            return masking.custom(rule)
        case rules.Masking(type=kind):
            return lambda text: masking.masked(kind, text)
        case rules.EncryptedAesSiv():
            return encryption(rule, secrets)
        case rules.Email():
            way = scramble.salted(rule.salt) if rule.salt else None
            way = way or scramble.keyed(_secret(rule, secrets))
            return scramble.emails(way, rule.replacement_domain, rule.exclude_domain)
        case _:
            return _by_secret(rule, value_type, _secret(rule, secrets))


def _by_secret(rule: Transformer, value_type: str, secret: bytes) -> Plain:  # noqa: C901, PLR0911, PLR0912 - one case per transformer
    """The transforms that depend on the value and a secret."""
    match rule:
        case rules.GreenmaskBoolean():
            texts = ("f", "t") if value_type == "bool" else ("false", "true")
            return lambda text: choice(secret, text, texts)
        case rules.GreenmaskChoice():
            return lambda text: choice(secret, text, rule.choices)
        case rules.GreenmaskDate():
            return lambda text: generated.day(secret, text, rule.min_value, rule.max_value)
        case rules.GreenmaskFloat():
            return lambda text: generated.floating(secret, text, rule)
        case rules.GreenmaskInteger() | rules.GreenmaskUnixTimestamp():
            least, greatest = bounds(rule, value_type)
            return lambda text: str(number(secret, text, least, greatest))
        case rules.GreenmaskString():
            return lambda text: generated.greenmask_string(secret, text, rule)
        case rules.GreenmaskUtcTimestamp():
            return _timestamps(rule, value_type, secret)
        case rules.GreenmaskUuid():
            return lambda text: generated.uuid4(secret, text)
        case rules.String():
            return lambda text: generated.letters(secret, text)
        case rules.NeosyncString():
            return lambda text: generated.neosync_string(secret, text, rule)
        case rules.NeosyncEmail():
            return lambda text: people.email(secret, text, rule)
        case rules.Hash():
            return _hash(rule, value_type, secret)
        case _:
            return _names(rule, secret)


def bounds(
    rule: rules.GreenmaskInteger | rules.GreenmaskUnixTimestamp, value_type: str
) -> tuple[int, int]:
    """The least and the greatest result: of the rule, else what its size and the type can hold."""
    size = rule.size if isinstance(rule, rules.GreenmaskInteger) else 8
    of_size = RANGES[f"int{size}"]
    of_type = RANGES.get(value_type, of_size)
    least = max(of_size[0], of_type[0]) if rule.min_value is None else rule.min_value
    greatest = min(of_size[1], of_type[1]) if rule.max_value is None else rule.max_value
    return least, greatest


def _timestamps(rule: rules.GreenmaskUtcTimestamp, value_type: str, secret: bytes) -> Plain:
    """Times as the column's type prints them; in text as RFC 3339."""
    zone = {"timestamp": "", "timestamptz": "+00"}.get(value_type, "Z")

    def time(text: str) -> str:
        shown = generated.timestamp(generated.instant(secret, text, rule), zone)
        return shown.replace(" ", "T") if zone == "Z" else shown

    return time


def _hash(rule: rules.Hash, value_type: str, secret: bytes) -> Plain:
    match value_type:
        case "uuid":
            return lambda text: generated.uuid4(secret, text)
        case "int2" | "int4" | "int8":
            return lambda text: str(number(secret, text, 0, RANGES[value_type][1]))
        case _:
            return lambda text: hashed(secret, text)[: rule.length]


def _names(rule: Transformer, secret: bytes) -> Plain:
    """The transformers of names; what is none of them is a mistake of ours."""
    match rule:
        case rules.NeosyncFullname():
            return lambda text: people.full_name(
                secret, text, rule.max_length, preserves_length=rule.preserve_length
            )
        case rules.NeosyncFirstname() | rules.NeosyncLastname():
            is_first = isinstance(rule, rules.NeosyncFirstname)
            names = people.first_names("Any") if is_first else people.last_names()
            return lambda text: people.person_name(
                secret,
                text,
                names,
                rule.max_length,
                length=min(len(text), rule.max_length) if rule.preserve_length else None,
            )
        case _:
            raise AssertionError(rule.name)


def _with_parameter(
    rule: rules.PhoneNumber | rules.GreenmaskFirstname | rules.DateShift, secret: bytes
) -> Transform:
    """The transforms with a parameter that another column may give; its NULL counts as none."""
    match rule:
        case rules.PhoneNumber():
            return lambda text, dynamic: generated.phone_number(
                secret, text, rule, dynamic.get("prefix") or rule.prefix
            )
        case rules.GreenmaskFirstname():
            return lambda text, dynamic: choice(
                secret, text, people.first_names(dynamic.get("gender") or rule.gender)
            )
        case rules.DateShift():
            return lambda text, dynamic: generated.shifted(
                secret, text, rule, dynamic.get("entity") or text
            )


def _hstore(rule: rules.Hstore, secrets: Secrets) -> Transform:
    """The operations on an hstore, in their order."""
    prepared = [(o, _renderer(o.value_template, secrets)) for o in rule.operations]

    def apply(text: str, dynamic: Dynamic) -> str:
        pairs = documents.parsed_hstore(text)
        for operation, rendered in prepared:
            if operation.key not in pairs:
                if operation.skips:
                    continue
                if operation.error_not_exist:
                    raise Unfit("a key does not exist")
            if operation.operation == "delete":
                pairs.pop(operation.key, None)
            elif rendered is not None:
                pairs[operation.key] = rendered(pairs.get(operation.key), dynamic)
            else:
                pairs[operation.key] = operation.value
        return documents.hstore_text(pairs)

    return apply


def _json(rule: rules.Json, secrets: Secrets) -> Transform:
    """The operations on a JSON document, in their order."""
    prepared = [(o, documents.steps_of(o.path), _new_json(o, secrets)) for o in rule.operations]

    def apply(text: str, dynamic: Dynamic) -> str:
        document = text.encode()
        for operation, steps, new in prepared:
            given = None if new is None else _bound(new, dynamic)
            document = documents.edited(document, steps, given, _missing(operation))
        return document.decode()

    return apply


NewValue: TypeAlias = Callable[[bytes, Dynamic], bytes]


def _bound(new: NewValue, dynamic: Dynamic) -> documents.NewJson:
    return lambda value: new(value, dynamic)


def _missing(operation: rules.JsonOperation) -> Missing:
    if operation.skips:
        return Missing.SKIP
    return Missing.FAIL if operation.error_not_exist else Missing.CREATE


def _new_json(operation: rules.JsonOperation, secrets: Secrets) -> NewValue | None:
    """What a `set` puts in place of a value; `None` for `delete`."""
    if operation.operation == "delete":
        return None
    rendered = _renderer(operation.value_template, secrets)
    if rendered is None:
        literal = json.dumps(operation.value, ensure_ascii=False).encode()
        return lambda value, dynamic: literal

    def new(value: bytes, dynamic: Dynamic) -> bytes:
        result = rendered(documents.plain(value), dynamic)
        return documents.checked(b"null" if result is None else result.encode())

    return new


def _renderer(text: str | None, secrets: Secrets) -> Rendered | None:
    return None if text is None else template(text, secrets)
