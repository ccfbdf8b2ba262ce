"""
Names and addresses of people who do not exist, from Faker's lists of names. Pure.

The lists are part of the result: with another version of Faker names differ, so it is pinned.
"""

from __future__ import annotations

from functools import cache

from pgstream_dagster.config.transformers import NeosyncEmail
from pgstream_dagster.modifiers.digest import characters, choice, derived, stream
from pgstream_dagster.modifiers.generated import LETTERS_AND_DIGITS, uuid4
from pgstream_dagster.modifiers.unfit import Unfit

LOWER = LETTERS_AND_DIGITS[:26]


@cache
def first_names(gender: str) -> tuple[str, ...]:
    """First names, each once: of a gender (`Male`, `Female`), else all."""
    from faker.providers.person.en_US import Provider  # 0.2 s, for those who use it

    male, female = tuple(Provider.first_names_male), tuple(Provider.first_names_female)
    lists = {"Male": male, "Female": female}
    return tuple(dict.fromkeys(lists.get(gender, (*male, *female))))


@cache
def last_names() -> tuple[str, ...]:
    """Last names, each once."""
    from faker.providers.person.en_US import Provider

    return tuple(dict.fromkeys(Provider.last_names))


def person_name(
    secret: bytes, text: str, names: tuple[str, ...], longest: int, *, length: int | None = None
) -> str:
    """A name no longer than `longest`, of `length` characters where one is given."""
    fitting = _fitting(names, longest, length)
    if fitting:
        return choice(secret, text, fitting)
    return characters(secret, text, min(length or longest, longest), LOWER).capitalize()


@cache
def _fitting(names: tuple[str, ...], longest: int, length: int | None) -> tuple[str, ...]:
    return tuple(name for name in names if len(name) <= longest and length in (None, len(name)))


def full_name(secret: bytes, text: str, longest: int, *, preserves_length: bool) -> str:
    """A first and a last name."""
    if preserves_length:
        return _of_length(secret, text, min(len(text), longest))
    first = person_name(secret, text, first_names("Any"), max(longest // 2, 1))
    rest = longest - len(first) - 1
    if rest < 1:
        return first[:longest]
    return f"{first} {person_name(secret + b'last', text, last_names(), rest)}"


def _of_length(secret: bytes, text: str, length: int) -> str:
    """A full name of exactly this length; where it is too short for two names: letters."""
    if length < 5:
        return characters(secret, text, length, LOWER).capitalize()
    first = person_name(secret, text, first_names("Any"), max(length - 3, 2) // 2 + 1)
    rest = length - len(first) - 1
    return f"{first} {person_name(secret + b'last', text, last_names(), rest, length=rest)}"


def email(secret: bytes, text: str, rule: NeosyncEmail) -> str | None:
    """Another address, as the rule says."""
    mailbox, at, domain = text.rpartition("@")
    if not (mailbox and at and "." in domain) or any(part.isspace() for part in text):
        if rule.invalid_email_action != "generate":
            return _not_an_address(text, rule)
        domain = ""
    keeps = bool(domain) and rule.preserve_domain != (domain in rule.excluded_domains)
    longest = min(len(text), rule.max_length) if rule.preserve_length else rule.max_length
    new_domain = domain if keeps else _domain(secret, text, max(longest - 2, 1))
    room = longest - len(new_domain) - 1
    if room < 1:
        raise Unfit("max_length leaves no room for an address with its domain")
    new_mailbox = _mailbox(secret, text, rule, room)
    if rule.preserve_length and len(new_mailbox) < room:
        new_mailbox += characters(
            derived(secret, "fill"), text, room - len(new_mailbox), LETTERS_AND_DIGITS
        )
    return f"{new_mailbox}@{new_domain}"


def _not_an_address(text: str, rule: NeosyncEmail) -> str | None:
    match rule.invalid_email_action:
        case "passthrough":
            return text
        case "null":
            return None
        case _:
            raise Unfit("it is no address of mail")


def _domain(secret: bytes, text: str, longest: int) -> str:
    """A domain that nobody can own (RFC 2606), as long as there is room for it."""
    label = characters(derived(secret, "domain"), text, 8, LOWER)
    return f"{label}.example"[-longest:].lstrip(".")


def _mailbox(secret: bytes, text: str, rule: NeosyncEmail, room: int) -> str:
    kind = rule.email_type
    if kind == "any":
        kind = ("uuidv4", "fullname")[stream(derived(secret, "kind"), text, 1)[0] % 2]
    if kind == "uuidv4":
        return uuid4(secret, text).replace("-", "")[:room]
    name = full_name(secret, text, max(room, 5), preserves_length=False)
    digits = characters(derived(secret, "digits"), text, 4, "0123456789")
    return f"{name.lower().replace(' ', '.')}{digits}"[:room]
