"""
A network between a client and a server that can be broken in every way a real one breaks.

A TCP proxy on 127.0.0.1. Bytes pass unchanged until a test cuts the connections (FIN), resets them
(RST), drops what is sent in silence (a black hole), slows them down, or answers HTTP requests in
the server's place. In a black hole the kernels still acknowledge what the programs send, so the
silence is that of the program at the other end; only a clock of the client's own can notice it.

The proxy runs in threads of this process. psycopg keeps the interpreter to itself while it opens a
replication connection, so a client of that kind belongs into another process.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

TICK_SECONDS: Final = 0.05
"""How soon a thread that waits for bytes sees that its connection is to end."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """How bytes pass, in each direction. The default: as they come."""

    latency_seconds: float = 0.0
    bytes_per_second: float | None = None
    chunk_bytes: int = 1 << 16


class State(Enum):
    """Of a connection through the proxy."""

    PASSING = auto()
    SILENT = auto()
    """What either side sends is read and thrown away, also after the network is back."""
    CUT = auto()
    """Both sides have been sent a FIN."""
    RESET = auto()


class TcpProxy:
    """
    Listens on a port of its own; use as a context manager.

    What is broken stays broken for the connections open at that moment; `restore` lets new ones
    pass again.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(TICK_SECONDS)
        self.port: Final[int] = self._listener.getsockname()[1]
        self.throttle = Throttle()
        self.accepted = 0
        self._new: Callable[[], State] = lambda: State.PASSING
        self._answer: bytes | None = None
        self._links: set[_Link] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._listener.close()
        self.reset()

    @property
    def open_count(self) -> int:
        """Connections that pass bytes now."""
        return sum(link.state is State.PASSING for link in list(self._links))

    def cut(self) -> None:
        """End every connection as a server does that goes away in order: FIN both ways."""
        self._end(State.CUT)

    def reset(self) -> None:
        """End every connection as a server does that knows nothing of it: RST both ways."""
        self._end(State.RESET)

    def drop(self) -> None:
        """From now on everything sent is lost in silence; new connections hear nothing."""
        self._new = lambda: State.SILENT
        self._end(State.SILENT)

    def refuse(self) -> None:
        """End every connection, and every new one at once."""
        self._new = lambda: State.RESET
        self._end(State.RESET)

    def answer(self, response: bytes) -> None:
        """Answer every HTTP request with these bytes and close, in the server's place."""
        self._answer = response
        self._end(State.CUT)

    def restore(self) -> None:
        """New connections pass again, at full speed. Those that were broken stay so."""
        self._new, self._answer, self.throttle = (lambda: State.PASSING), None, Throttle()

    def _end(self, state: State) -> None:
        for link in list(self._links):
            link.end(state)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self._answer is not None:
            _answer(client, self._answer)
            return
        state = self._new()
        if state is State.RESET:
            _close(client, reset=True)
            return
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            _close(client, reset=True)
            return
        link = _Link(self, client, server, state)
        self._links.add(link)
        try:
            link.run()
        finally:
            self._links.discard(link)


class _Link:
    """One connection: two threads, one per direction."""

    def __init__(
        self, proxy: TcpProxy, client: socket.socket, server: socket.socket, state: State
    ) -> None:
        self._proxy, self._client, self._server, self.state = proxy, client, server, state
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(TICK_SECONDS)

    def end(self, state: State) -> None:
        """Break it, unless it is broken already; a connection in silence can still be reset."""
        if self.state is State.PASSING or state is State.RESET:
            self.state = state
        if state is State.CUT:
            for end in (self._client, self._server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_WR)

    def run(self) -> None:
        """Until both directions have ended."""
        back = threading.Thread(target=self._pass, args=(self._server, self._client), daemon=True)
        back.start()
        self._pass(self._client, self._server)
        back.join()
        for end in (self._client, self._server):
            _close(end, reset=self.state is State.RESET)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while self.state is not State.RESET:
                try:
                    data = source.recv(self._proxy.throttle.chunk_bytes)
                except TimeoutError:
                    continue
                if not data:
                    break
                self._send(target, data)
            if self.state is State.PASSING:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            if self.state is State.PASSING:  # one end is gone: the other must hear of it
                self.state = State.RESET

    def _send(self, target: socket.socket, data: bytes) -> None:
        throttle = self._proxy.throttle
        seconds = throttle.latency_seconds
        if throttle.bytes_per_second:
            seconds += len(data) / throttle.bytes_per_second
        if seconds:
            time.sleep(seconds)
        while data and self.state is State.PASSING:
            with suppress(TimeoutError):
                data = data[target.send(data) :]


def _answer(client: socket.socket, response: bytes) -> None:
    """Read one whole request, else the close would take back the answer; then answer."""
    client.settimeout(10)
    with client, suppress(OSError):
        data = b""
        while b"\r\n\r\n" not in data:
            if not (received := client.recv(1 << 16)):
                return
            data += received
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
        missing = int(length[1]) - len(body) if length else 0
        while missing > 0 and (received := client.recv(1 << 16)):
            missing -= len(received)
        client.sendall(response)


def _close(end: socket.socket, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def http(status: str, body: bytes = b"", *, kind: str = "text/html", promised: int = 0) -> bytes:
    """An HTTP answer; `promised` bytes more than there are make it a truncated one."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body) + promised}\r\n\r\n".encode() + body
