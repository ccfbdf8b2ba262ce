"""
What a subscriber's answer means for the changes of the call. No I/O.

2xx delivers. 408, 425, 429 and 5xx ask for another attempt, at the time that `Retry-After` names.
410 ends the subscription. Everything else refuses the call.

Source:
    https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3 (Retry-After)
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from pgstream_dagster.sinks.webhook.transport import Answer

LONGEST_WAIT_SECONDS: Final = 86_400.0
"""A subscriber that asks for more is asked again after a day: it may have been a mistake."""

RETRIED: Final = frozenset({408, 425, 429})
"""With 5xx: the statuses after which the same call may succeed."""

WHOLE_ENDPOINT: Final = frozenset({429, 502, 503, 504})
"""Said by the endpoint, or what is before it, about every call and not about this one."""


class Outcome(Enum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    NOT_NOW = "not now"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # no connection was made, so nothing was delivered
    FORBIDDEN = "forbidden"  # the address is private
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Meaning:
    """An attempt's outcome and reason; `stops_all`: other calls would have the same."""

    outcome: Outcome
    reason: str = ""
    wait_seconds: float | None = None
    stops_all: bool = False
    status: int | None = None


def meaning(answer: Answer, now: float) -> Meaning:
    """What an answer means; `now` in seconds since 1970."""
    status = answer.status
    if 200 <= status < 300:
        return Meaning(Outcome.DELIVERED, status=status)
    reason = f"HTTP {status}" + (f": {answer.excerpt}" if answer.excerpt else "")
    if status == 410:
        return Meaning(Outcome.GONE, reason, stops_all=True, status=status)
    if status not in RETRIED and status < 500:
        return Meaning(Outcome.REFUSED, reason, status=status)
    wait = retry_after(answer.headers.get("retry-after", ""), now)
    stops_all = status in WHOLE_ENDPOINT or wait is not None
    return Meaning(Outcome.NOT_NOW, reason, wait, stops_all, status)


def retry_after(text: str, now: float) -> float | None:
    """The seconds that a `Retry-After` asks for, a number or a date; `None`: it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT_SECONDS)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT_SECONDS)
