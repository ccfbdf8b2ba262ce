"""
TLS, and if wanted a login, in front of a server that has neither.

What a production cluster looks like from outside: a certificate of an authority that nobody knows,
HTTP basic credentials or an `Authorization: ApiKey` header, 401 for everybody else. Threads of the
standard library; requests and answers pass whole and unchanged.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import trustme

HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "content-length", "host", "authorization")
)
"""What is between two neighbours and not passed on (RFC 9110, 7.6.1), and what we set or check."""


@dataclass(frozen=True, slots=True)
class TlsFront:
    """Where the front answers, and the certificate of the authority that vouches for it."""

    url: str
    ca_file: Path


@contextmanager
def tls_proxy(
    target: str, *, basic: tuple[str, str] | None = None, api_key: str | None = None
) -> Iterator[TlsFront]:
    """
    `target` behind https on 127.0.0.1 and localhost.

    With `basic` (user, password) or `api_key` (as the header holds it), one of those given is
    needed; without either, everybody may.
    """
    allowed = []
    if basic is not None:
        allowed.append(f"Basic {base64.b64encode(':'.join(basic).encode()).decode()}")
    if api_key is not None:
        allowed.append(f"ApiKey {api_key}")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with TemporaryDirectory() as folder, _Front(target, allowed, context) as server:
        ca_file = Path(folder) / "ca.pem"
        authority.cert_pem.write_to_path(ca_file)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield TlsFront(f"https://127.0.0.1:{server.server_port}", ca_file)
        finally:
            server.shutdown()
            thread.join()


class _Front(ThreadingHTTPServer):
    daemon_threads = True  # one may wait for the next request of a client that keeps its connection

    def __init__(self, target: str, allowed: list[str], context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.allowed, self.context = urlsplit(target), allowed, context

    def finish_request(self, request, client_address) -> None:
        # The handshake here, in the thread of the connection: a slow client must not hold others.
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request, client_address) -> None:
        """Nothing: a client that distrusts our certificate, or hangs up, tells its own side."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Front

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.allowed and self.headers.get("authorization") not in self.server.allowed:
            self._answer(401, [("WWW-Authenticate", 'Basic realm="test"')], b"{}")
            return
        target = self.server.target
        upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=120)
        try:
            upstream.request(self.command, self.path, body, _passed_on(self.headers.items()))
            answer = upstream.getresponse()
            self._answer(answer.status, _passed_on(answer.getheaders()).items(), answer.read())
        except OSError as error:
            self._answer(502, [], str(error).encode())
        finally:
            upstream.close()

    def _answer(self, status: int, headers, body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the test says what matters."""


def _passed_on(headers) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in HOP_BY_HOP}
