"""The front with TLS and logins that stands before search engines in tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from tests.support.harness.tls_proxy import TlsFront, tls_proxy


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response_only(201)
        self.send_header("X-Path", self.path)
        self.send_header("X-Authorization", str(self.headers.get("authorization")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def post(front: TlsFront, *, ca: bool = True, **arguments) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        session.verify = str(front.ca_file) if ca else True
        return session.post(f"{front.url}/a%2Fb?c=d", data=b"{}\n", timeout=30, **arguments)


def test_request_passes_with_path_and_body(echo: str) -> None:
    with tls_proxy(echo) as front:
        answer = post(front)
        assert (answer.status_code, answer.content) == (201, b"{}\n")
        assert answer.headers["X-Path"] == "/a%2Fb?c=d"


def test_client_that_does_not_know_the_authority_refuses(echo: str) -> None:
    with tls_proxy(echo) as front, pytest.raises(requests.exceptions.SSLError):
        post(front, ca=False)


def test_login_is_asked_for_and_kept_from_the_server_behind(echo: str) -> None:
    with tls_proxy(echo, basic=("reader", "s3cret"), api_key="aWQ6a2V5") as front:
        assert post(front).status_code == 401
        assert post(front, auth=("reader", "wrong")).status_code == 401
        by_password = post(front, auth=("reader", "s3cret"))
        by_key = post(front, headers={"Authorization": "ApiKey aWQ6a2V5"})
        assert by_password.status_code == by_key.status_code == 201
        assert by_password.headers["X-Authorization"] == "None"


def test_server_behind_that_is_gone_is_a_bad_gateway() -> None:
    with tls_proxy("http://127.0.0.1:1") as front:
        assert post(front).status_code == 502
