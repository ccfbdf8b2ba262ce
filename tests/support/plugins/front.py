"""An HTTP server for tests that answers as it is told, or passes requests on to another server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit


class Request(NamedTuple):
    method: str
    path: str
    body: bytes


class Answer(NamedTuple):
    """`is_cut`: the connection ends in the middle of the body."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    location: str | None = None
    is_cut: bool = False


Answers: TypeAlias = Callable[[Request], "Answer | None"]


class Front(ThreadingHTTPServer):
    """Answers by `answer`; what that gives `None` for is passed on to `target`."""

    def __init__(self, answer: Answers, target: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.target = answer, target

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def passed_on(self, request: Request) -> Answer:
        parts = urlsplit(self.target)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request(request.method, request.path, request.body or None, headers)
            answer = connection.getresponse()
            kind = answer.headers.get("content-type", "application/json")
            return Answer(answer.status, answer.read(), kind)
        except OSError:
            return Answer(502, b"<html>no backend</html>", "text/html")
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    server: Front
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        request = Request(self.command, self.path, body)
        answer = self.server.answer(request) or self.server.passed_on(request)
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        self.send_header("content-length", str(len(answer.body)))
        if answer.location is not None:
            self.send_header("location", answer.location)
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if answer.is_cut else answer.body)
        self.close_connection = self.close_connection or answer.is_cut

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the library asks for them

    def log_message(self, *message: Any) -> None:
        """Nothing is printed."""


@contextmanager
def front(answer: Answers, target: str = "") -> Iterator[Front]:
    """A server while the block runs."""
    with Front(answer, target) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
