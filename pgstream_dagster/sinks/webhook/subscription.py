"""A subscription: an address and the changes that it receives. No I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import httpx

from pgstream_dagster.config.webhook import url_problem
from pgstream_dagster.patterns import OWN_NAMESPACE
from pgstream_dagster.readers.change import Change
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.sinks.message import is_event
from pgstream_dagster.sinks.webhook.addresses import is_public

EVENT_TYPES: Final = {
    Op.INSERT: "I",
    Op.READ: "I",
    Op.COPY: "I",  # rows of the whole table follow it
    Op.GAP: "I",
    Op.UPDATE: "U",
    Op.DELETE: "D",
    Op.TRUNCATE: "T",
    Op.DDL: "M",
    Op.MESSAGE: "M",
}
"""pgstream's letter for each operation."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """
    A wish: changes of `namespace`.`table` of some event types go to `url`.

    An empty namespace, table or list of event types matches everything. `name` is the reader's:
    given in the file, or made from what identifies a row of the table.
    """

    url: str
    namespace: str = ""
    table: str = ""
    event_types: tuple[str, ...] = ()
    name: str = ""
    disabled_at: datetime | None = None
    disabled_reason: str | None = None

    def matches(self, change: Change) -> bool:
        """Whether it receives this change; it receives every event of the outbox."""
        if is_event(change):
            return True
        if change.namespace == OWN_NAMESPACE:  # nobody subscribes to the subscriptions
            return False
        return (
            (not self.namespace or self.namespace == change.namespace)
            and (not self.table or self.table == change.relation)
            and (not self.event_types or EVENT_TYPES[Op(change.op)] in self.event_types)
        )

    @property
    def origin(self) -> str:
        """`scheme://host:port`: what may be logged of the URL, whose path may be a secret."""
        return origin(self.url)


def row_name(url: str, namespace: str, table: str) -> str:
    """The name of a row of the table: the same row always has the same."""
    digest = hashlib.blake2b(f"{url}\0{namespace}\0{table}".encode(), digest_size=8)
    return f"webhook-{digest.hexdigest()}"


def origin(url: str) -> str:
    """`scheme://host:port` of a URL."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def problem_of(url: str, *, allow_private: bool) -> str | None:
    """What is wrong with a subscriber's URL, without repeating it; `None`: nothing seen yet."""
    if (problem := url_problem(url)) is not None:
        return problem
    try:
        host = httpx.URL(url).host
    except (httpx.InvalidURL, ValueError):  # a name that is no IDN is a ValueError
        return "is no URL"
    return None if allow_private else _private_literal(host)


def _private_literal(host: str) -> str | None:
    """The early half of the check: a name is checked when it is connected to."""
    try:
        is_allowed = is_public(ip_address(host))
    except ValueError:
        is_allowed = host != "localhost"
    return None if is_allowed else "is a private address: set allow_private_addresses to allow it"
