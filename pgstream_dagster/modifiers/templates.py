"""
Jinja templates in a sandbox, with the functions of the transformers. Pure.

Whatever would give another result each time (`random`, `lipsum`) is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pgstream_dagster.config.transformers import NOT_IN_TEMPLATES, PhoneNumber, needs_key
from pgstream_dagster.modifiers import generated, masking, people, scramble
from pgstream_dagster.modifiers.digest import derived
from pgstream_dagster.modifiers.keys import Secrets, hashed
from pgstream_dagster.modifiers.unfit import Unfit

_NULL: Final = "\x00"
"""What an expression without a value prints; Postgres knows no text with it."""

Rendered = Callable[[object, Mapping[str, str | None]], "str | None"]
"""The value and the columns that may be read, by the names of the parameters, to a text."""


def template(text: str, secrets: Secrets) -> Rendered:
    """
    What renders a template; the result is NULL if the template prints only a NULL.

    Raises:
        MissingSetting: it needs the key of the transformers.
    """
    if needs_key(text):
        secrets.key()
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, finalize=_shown
    )
    for name in NOT_IN_TEMPLATES:
        environment.filters.pop(name)
    environment.globals.clear()
    environment.globals.update(functions(secrets))
    compiled = environment.from_string(text)

    def rendered(value: object, dynamic: Mapping[str, str | None]) -> str | None:
        def parameter(name: str) -> str | None:
            if name not in dynamic:
                raise Unfit("the template reads a column that dynamic_parameters does not name")
            return dynamic[name]

        try:
            result = compiled.render(value=value, dynamic=parameter)
        except Unfit:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a template may do; its text may hold the value
            raise Unfit(f"the template fails ({type(error).__name__})") from None
        return None if result == _NULL else result.replace(_NULL, "")

    return rendered


def _shown(value: Any) -> Any:
    return _NULL if value is None else value


def functions(secrets: Secrets) -> Mapping[str, Callable[..., Any]]:
    """What a template can call, by name."""

    def secret(purpose: str) -> bytes:
        return derived(secrets.key(), purpose)

    def mask(kind: str, value: str) -> str:
        if kind not in masking.MASKS:
            raise Unfit("the template names a type of masking that does not exist")
        return masking.masked(kind, value)

    def email(value: str, domain: str = "@example.com", exclude: str = "", salt: str = "") -> str:
        way = scramble.salted(salt) if salt else scramble.keyed(secret("email"))
        return scramble.emails(way, domain, exclude)(value)

    def phone_number(value: str, prefix: str = "", length: int = 10) -> str:
        rule = PhoneNumber(name="phone_number", min_length=length, max_length=length)
        return generated.phone_number(secret("phone_number"), value, rule, prefix)

    def name(value: str, names: tuple[str, ...]) -> str:
        return people.person_name(secret("name"), value, names, 100)

    return {
        "masking": mask,
        "email": email,
        "phone_number": phone_number,
        "hash": lambda value, length=64: hashed(secret("hash"), value)[:length],
        "string": lambda value: generated.letters(secret("string"), value),
        "firstname": lambda value, gender="Any": name(value, people.first_names(gender)),
        "lastname": lambda value: name(value, people.last_names()),
    }
