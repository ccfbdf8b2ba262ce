"""Numbers, texts, dates and times that follow from a secret and a value. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final

from pgstream_dagster.config.transformers import (
    DateShift,
    GreenmaskFloat,
    GreenmaskString,
    GreenmaskUtcTimestamp,
    NeosyncString,
    PhoneNumber,
)
from pgstream_dagster.modifiers.digest import characters, derived, number, stream
from pgstream_dagster.modifiers.unfit import Unfit

LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LETTERS_AND_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
DIGITS: Final = "0123456789"

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

_FORMATS: Final = {
    "year": "%Y-01-01 00:00:00",
    "month": "%Y-%m-01 00:00:00",
    "day": "%Y-%m-%d 00:00:00",
    "hour": "%Y-%m-%d %H:00:00",
    "minute": "%Y-%m-%d %H:%M:00",
    "second": "%Y-%m-%d %H:%M:%S",
}
"""How a time is cut to its larger parts."""


def phone_number(secret: bytes, text: str, rule: PhoneNumber, prefix: str) -> str:
    """Digits after a prefix; for an empty secret those of pgstream's deterministic generator."""
    if len(prefix) > rule.min_length:
        raise Unfit("the prefix is longer than min_length")
    data = stream(secret, text, rule.max_length + 1)
    length = rule.min_length + data[0] % (rule.max_length - rule.min_length + 1)
    count = length - len(prefix)
    return prefix + "".join(DIGITS[byte % 10] for byte in data[1 : count + 1])


def letters(secret: bytes, text: str) -> str:
    """As many letters as the text has characters."""
    return characters(secret, text, len(text), LETTERS)


def greenmask_string(secret: bytes, text: str, rule: GreenmaskString) -> str:
    """Symbols of a rule, between its lengths."""
    length = number(derived(secret, "length"), text, rule.min_length, rule.max_length)
    return characters(secret, text, length, rule.symbols)


def neosync_string(secret: bytes, text: str, rule: NeosyncString) -> str:
    """Letters and digits, between the lengths of a rule or as many as the text has."""
    length = number(derived(secret, "length"), text, rule.min_length, rule.max_length)
    if rule.preserve_length:
        length = min(len(text), rule.max_length)
    return characters(secret, text, length, LETTERS_AND_DIGITS)


def floating(secret: bytes, text: str, rule: GreenmaskFloat) -> str:
    """A number between the bounds of a rule, with its digits."""
    part = number(secret, text, 0, 1 << 53) / (1 << 53)
    value = rule.min_value * (1 - part) + rule.max_value * part
    rounded = f"{min(max(value, rule.min_value), rule.max_value):.{rule.precision}f}"
    inside = min(max(float(rounded), rule.min_value), rule.max_value)
    shown = rounded if inside == float(rounded) else repr(inside)
    shown = shown.rstrip("0").rstrip(".") if "." in shown and "e" not in shown else shown
    return "0" if shown == "-0" else shown


def uuid4(secret: bytes, text: str) -> str:
    """A UUID of version 4."""
    return str(uuid.UUID(bytes=stream(secret, text, 16), version=4))


def day(secret: bytes, text: str, first: str, last: str) -> str:
    """A day between two, as yyyy-mm-dd."""
    least, greatest = (date.fromisoformat(bound).toordinal() for bound in (first, last))
    return date.fromordinal(number(secret, text, least, greatest)).isoformat()


def instant(secret: bytes, text: str, rule: GreenmaskUtcTimestamp) -> datetime:
    """A time between those of a rule, cut as it says."""
    least, greatest = (
        (datetime.fromisoformat(bound) - EPOCH) // MICROSECOND
        for bound in (rule.min_timestamp, rule.max_timestamp)
    )
    time = EPOCH + number(secret, text, least, greatest) * MICROSECOND
    if rule.truncate_part == "millisecond":
        return time.replace(microsecond=time.microsecond // 1000 * 1000)
    form = _FORMATS.get(rule.truncate_part or "")
    if form is None:
        return time
    return datetime.strptime(f"{time:{form}}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def timestamp(time: datetime, zone: str) -> str:
    """A time as Postgres prints it, without trailing zeros."""
    fraction = f".{time.microsecond:06d}".rstrip("0") if time.microsecond else ""
    return f"{time:%Y-%m-%d %H:%M:%S}{fraction}{zone}"


def shifted(secret: bytes, text: str, rule: DateShift, entity: str) -> str:
    """A date or timestamp moved by the days that follow from `entity`; infinities stay."""
    if text in ("infinity", "-infinity"):
        return text
    days = number(secret, entity, 1, 2 * rule.days) - rule.days
    days = days if days > 0 else days - 1
    try:
        moved = date.fromisoformat(text[:10]) + timedelta(days=days)
        is_plain = text.endswith("BC") is False and text[10:11] in ("", " ")
    except (ValueError, OverflowError):
        moved, is_plain = None, False
    if moved is None or not is_plain:
        raise Unfit("it is no date of the years 1 to 9999, or the shift leaves them")
    return moved.isoformat() + text[10:]


Generated = Callable[[str], str]
"""A value's text to the text that takes its place."""
