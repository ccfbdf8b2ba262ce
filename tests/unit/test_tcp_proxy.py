"""The network that tests break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from tests.support.harness.tcp_proxy import TcpProxy, Throttle, http
from tests.support.plugins.wait import until


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client:
                try:
                    while data := client.recv(1 << 16):
                        client.sendall(data)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: int) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", echo) as proxy:
        yield proxy


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def exchange(client: socket.socket, data: bytes = b"hello") -> bytes:
    client.sendall(data)
    received = b""
    while len(received) < len(data):
        if not (more := client.recv(1 << 16)):
            break
        received += more
    return received


def test_bytes_pass_unchanged_both_ways(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 400
    with closing(connected(proxy)) as client:
        assert exchange(client, data) == data


def test_a_side_that_ends_its_sending_still_receives(proxy: TcpProxy) -> None:
    with closing(connected(proxy)) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b"last"
        assert client.recv(10) == b""
    until(lambda: not proxy.open_count)


def test_cut_is_an_end_of_file(proxy: TcpProxy) -> None:
    with closing(connected(proxy)) as client:
        assert exchange(client) == b"hello"
        proxy.cut()
        assert client.recv(10) == b""
    with closing(connected(proxy)) as client:
        assert exchange(client) == b"hello"


def test_reset_is_an_error(proxy: TcpProxy) -> None:
    with closing(connected(proxy)) as client:
        assert exchange(client) == b"hello"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(10)


def test_dropped_is_silence_until_restored_and_then_for_new_connections_only(
    proxy: TcpProxy,
) -> None:
    with closing(connected(proxy)) as old:
        assert exchange(old) == b"hello"
        proxy.drop()
        with closing(connected(proxy)) as new:
            for client in (old, new):
                client.sendall(b"lost")
                client.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    client.recv(10)
        proxy.restore()
        with pytest.raises(TimeoutError):
            old.recv(10)
    with closing(connected(proxy)) as client:
        assert exchange(client) == b"hello"


def test_refused_is_reset_at_once(proxy: TcpProxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionError), closing(connected(proxy)) as client:
        exchange(client)


def test_throttle_takes_at_least_its_time(proxy: TcpProxy) -> None:
    with closing(connected(proxy)) as client:
        proxy.throttle = Throttle(latency_seconds=0.05, bytes_per_second=10_000)
        began = time.monotonic()
        assert exchange(client, b"x" * 1_000) == b"x" * 1_000
        assert time.monotonic() - began > 2 * (0.05 + 0.1)
        proxy.throttle = Throttle(chunk_bytes=1)
        assert exchange(client, b"one byte at a time") == b"one byte at a time"


@pytest.mark.parametrize("body", [b"", b"<html>login</html>"])
def test_answers_in_place_of_the_server(proxy: TcpProxy, body: bytes) -> None:
    proxy.answer(http("520 Unknown", body))
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(f"http://127.0.0.1:{proxy.port}/_bulk", data=b"x" * 500_000)
    assert (answer.status_code, answer.content) == (520, body)


def test_truncated_answer_is_an_error_of_the_connection(proxy: TcpProxy) -> None:
    proxy.answer(http("200 OK", b'{"took', kind="application/json", promised=20))
    with requests.Session() as session:
        session.trust_env = False
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            session.get(f"http://127.0.0.1:{proxy.port}/")
