"""
Asterisks in place of a part of a text, by what the text is. Pure.

Results are those of go-masker, with two differences: lengths are counted in characters, and a text
so short that all of it would stay readable becomes asterisks alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from pgstream_dagster.config.transformers import Masking
from pgstream_dagster.modifiers.unfit import Unfit

PASSWORD: Final = "*" * 12

_LONGEST: Final = 1 << 62


def masked(kind: str, text: str) -> str:
    """A text with asterisks, as of its kind (any type of `masking` but `custom`)."""
    return MASKS[kind](text) if text else ""


def custom(rule: Masking) -> Callable[[str], str]:
    """What masks by the bounds of a rule."""
    unmasks = rule.unmask_begin is not None or rule.unmask_end is not None
    first, second = (
        (rule.unmask_begin, rule.unmask_end) if unmasks else (rule.mask_begin, rule.mask_end)
    )

    def mask(text: str) -> str:
        length = len(text)
        begin, end = sorted((_place(first or "0%", length), _place(second or "100%", length)))
        if unmasks:
            return "*" * begin + text[begin:end] + "*" * (length - end)
        return text[:begin] + "*" * (end - begin) + text[end:]

    return mask


def _place(bound: str, length: int) -> int:
    """Where a bound is in a text of this length."""
    if bound.endswith("%"):
        return length * min(max(int(bound[:-1]), 0), 100) // 100
    return min(max(int(bound), 0), length)


def _covered(text: str, asterisks: int, begin: int, end: int) -> str:
    """Asterisks in place of the characters from `begin` to `end`."""
    if len(text) <= begin:
        return "*" * asterisks
    return text[:begin] + "*" * asterisks + text[end:]


def _name(text: str) -> str:
    if " " in text:
        return " ".join(_name(part) if part else "" for part in text.split(" "))
    return _covered(text, 2, 1, 3 if len(text) > 3 else 2)


def _email(text: str) -> str:
    if "@" not in text:
        return _covered(text, 4, 3, 7)
    mailbox, domain = text.split("@")[:2]
    return f"{_covered(mailbox, 4, 3, 7)}@{domain}"


def _telephone(text: str) -> str:
    digits = re.sub(r"[ ()-]", "", text)
    area = f"({digits[:2]})" if len(digits) == 10 else ""
    rest = digits[2:] if area else digits
    if len(rest) == 8:
        return f"{area}{rest[:4]}-****"
    return rest[:-4] + "****"  # go-masker leaves numbers of other lengths readable


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None
    except ValueError:
        raise Unfit("it is no URL") from None
    if not has_password:
        return text
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.split(':', 1)[0]}:xxxxx@{host}"))


MASKS: Final[Mapping[str, Callable[[str], str]]] = {
    "default": lambda text: "*" * len(text),
    "password": lambda text: PASSWORD,
    "name": _name,
    "address": lambda text: _covered(text, 6, 6, _LONGEST),
    "email": _email,
    "mobile": lambda text: _covered(text, 3, 4, 7),
    "tel": _telephone,
    "id": lambda text: _covered(text, 4, 6, 10),
    "credit_card": lambda text: _covered(text, 6, 6, 12),
    "url": _url,
}
"""By the type that a rule names."""
