"""
Which addresses a call may connect to, and the connections that keep to it.

A subscriber's URL is input from outside: it must not reach this machine, its networks or the
metadata service of a cloud. A name is resolved here, its addresses are checked, and the connection
is made to the checked address, so a name whose address changes in between (DNS rebinding) gains
nothing. Every connection passes here, that of a redirect too. Also here: one deadline for a whole
call, however slowly the other side sends.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, TypeAlias

import httpcore

from pgstream_dagster.errors import PrivateAddress

Address: TypeAlias = IPv4Address | IPv6Address

IsAllowed: TypeAlias = Callable[[Address], bool]

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""The addresses of a host, as text; raises `OSError` if there are none."""

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All that is routed on the internet; everything else is for special use (RFC 4291)."""

NAT64: Final = IPv6Network("64:ff9b::/96")
"""How hosts without IPv4 reach IPv4 addresses: the last 32 bits (RFC 6052)."""

CLOUD: Final = frozenset({IPv4Address("168.63.129.16")})
"""Azure's service for virtual machines: a public address that only they reach."""


def is_public(address: Address) -> bool:
    """Whether it is an address of the internet: not private, local, multicast or embedding such."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and address not in CLOUD
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    is_tunnel = address.sixtofour is not None or address.teredo is not None
    return address in GLOBAL_UNICAST and address.is_global and not is_tunnel


def anywhere(_address: Address) -> bool:
    """Allow every address."""
    return True


def resolved(host: str, port: int) -> list[str]:
    """The host's addresses in the order of the system's preference."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in answers))


class Deadline(threading.local):
    """When the call of this thread ends, on `time.monotonic`'s clock; none: no limit."""

    at: float | None = None

    def within(self, timeout: float | None) -> float | None:
        """`timeout`, but not past the deadline; 0 or less when that has passed."""
        if self.at is None:
            return timeout
        left = self.at - time.monotonic()
        return left if timeout is None else min(timeout, left)


class GuardedBackend(httpcore.NetworkBackend):
    """Connects to addresses that are allowed, and to no other."""

    def __init__(
        self, deadline: Deadline, is_allowed: IsAllowed, resolve: Resolve = resolved
    ) -> None:
        self._deadline = deadline
        self._is_allowed = is_allowed
        self._resolve = resolve
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """
        Connect to the first address of `host` that is allowed and answers.

        Raises:
            PrivateAddress: none is allowed.
            httpcore.ConnectError, httpcore.ConnectTimeout
        """
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        options = list(socket_options or ())
        for address in self._allowed(host, port):
            left = self._deadline.within(timeout)
            if left is not None and left <= 0:
                raise httpcore.ConnectTimeout("timed out")
            try:
                stream = self._backend.connect_tcp(address, port, left, local_address, options)
                return _TimedStream(stream, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def _allowed(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no host name"
            raise httpcore.ConnectError(f"cannot resolve {host}: {reason}") from error
        allowed = [a for a in addresses if self._is_allowed(ip_address(a))]
        if addresses and not allowed:
            raise PrivateAddress(host, addresses[0])
        return allowed


class _TimedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end with the call that makes them."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._deadline.within(timeout)
        if left is not None and left <= 0:
            raise httpcore.ReadTimeout("timed out")
        return self._stream.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = self._deadline.within(timeout)
        if left is not None and left <= 0:
            raise httpcore.WriteTimeout("timed out")
        self._stream.write(buffer, left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._deadline.within(timeout)
        if left is not None and left <= 0:
            raise httpcore.ConnectTimeout("timed out")
        stream = self._stream.start_tls(ssl_context, server_hostname, left)
        return _TimedStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
