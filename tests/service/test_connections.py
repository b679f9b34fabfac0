"""Heads of requests are limited in size and time; bodies up to the limit of a body pass."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.service import middleware, running

from .conftest import Served
from .parts import ROW, ServiceThread


@pytest.fixture
def port(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(running, "_HEAD_SECONDS", 0.5)
    monkeypatch.setattr(middleware, "_BODY_SECONDS", 0.5)
    with ServiceThread(served.settings) as service:
        yield int(service.url.rpartition(":")[2])


def test_large_and_slow_heads_and_bodies_end_the_connection(port: int, served: Served) -> None:
    def send(*parts: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                return connection.recv(1000)
            except OSError:
                return b"closed"

    line = b"POST /v1/predictions HTTP/1.1\r\nHost: x\r\n"
    key = f"Authorization: Bearer {served.key}\r\n".encode()
    large = send(line, b"X: " + b"a" * 2_000_000)
    assert large in (b"closed", b"") or large.startswith(b"HTTP/1.1 431")
    assert send(line) == b""  # nothing more came, so it was closed
    slow = send(line + key + b"Content-Length: 100\r\n\r\n{")
    assert slow.startswith(b"HTTP/1.1 408")
    # Two ordinary requests on one connection, with a pause between them.
    whole = line + key + b"Content-Length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for _ in range(2):
            connection.sendall(whole)
            assert connection.recv(4000).startswith(b"HTTP/1.1 422")
            time.sleep(0.7)


LINE = b"POST /v1/predictions HTTP/1.1\r\nHost: x\r\n"


def _head(served: Served, *more: str) -> bytes:
    lines = [f"Authorization: Bearer {served.key}", "Connection: close", *more]
    return LINE + "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


@pytest.mark.parametrize("size", [60_000, 70_000, 200_000, 400_000, 1_000_000, 1_900_000])
@pytest.mark.parametrize("chunk", [0, 997, 100_000])
def test_a_body_below_its_limit_is_answered_and_charged_once(
    served: Served, size: int, chunk: int
) -> None:
    """However the reads of the connection are cut, and whether or not the body is chunked."""
    body = json.dumps({"queries": [ROW]}).encode() + b" " * size
    with ServiceThread(served.settings) as service:
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            if chunk:
                parts = [body[at : at + chunk] for at in range(0, len(body), chunk)]
                framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
                head = _head(served, "Transfer-Encoding: chunked")
                connection.sendall(head + framed + b"0\r\n\r\n")
            else:
                connection.sendall(_head(served, f"Content-Length: {len(body)}") + body)
            assert connection.recv(4000).startswith(b"HTTP/1.1 200")
    assert served.answers == 1


@pytest.mark.parametrize("size", [50_000, 70_000, 100_000, 200_000])
def test_a_head_is_limited_though_it_comes_with_its_end(served: Served, size: int) -> None:
    """Sent at once, head and body may be a single read of the connection."""
    body = json.dumps({"queries": [ROW]}).encode()
    head = _head(served, f"X-Field: {'a' * size}\r\nContent-Length: {len(body)}")
    with ServiceThread(served.settings) as service:
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(head + body)
            received = b""
            with suppress(ConnectionError):
                received = connection.recv(4000)
    assert received.startswith(b"HTTP/1.1 200") == (size < 64 * 1024)
    assert served.answers == int(size < 64 * 1024)


def _sent_until_closed(port: int, start: bytes, more: bytes, most: int) -> int:
    """Return how many bytes a service takes before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(start)
        sent = 0
        try:
            while sent < most:
                connection.sendall(more)
                sent += len(more)
        except OSError:
            pass
        return sent


def test_fields_behind_a_body_are_limited(served: Served) -> None:
    """Without a valid key, too; and whether they are many or a single one that never ends."""
    start = LINE + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with ServiceThread(served.settings) as service:
        port = int(service.url.rpartition(":")[2])
        for more in (b"X-Field: abc\r\n" * 1000, b"a" * 10_000):
            assert _sent_until_closed(port, start + b"X: ", more, 50_000_000) < 10_000_000


def test_a_slow_second_head_ends_the_connection(port: int, served: Served) -> None:
    whole = LINE + f"Authorization: Bearer {served.key}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(whole)
        assert connection.recv(4000).startswith(b"HTTP/1.1 422")
        started = time.monotonic()
        with suppress(OSError):  # that it is closed
            for letter in b"POST /v1/budget HTTP/1.1 and never an end of the line" * 2:
                connection.sendall(bytes([letter]))
                time.sleep(0.1)
        assert time.monotonic() - started < 8.0


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(served: Served) -> None:
    with ServiceThread(served.settings) as service:
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(_head(served, "Content-Length: 30000000"))
            assert connection.recv(4000).startswith(b"HTTP/1.1 413")
    assert served.answers == 0


@pytest.mark.parametrize(
    "start",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"GET /v1/budget HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        LINE + b"Content-Length: 900000000\r\n\r\n",
    ],
    ids=["healthz", "chunked", "announced"],
)
def test_a_body_that_nobody_reads_ends_the_connection(
    port: int, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, such connections would otherwise be held for ever, and fill up the service."""
    monkeypatch.setattr(running, "_BODY_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(start)
        assert connection.recv(4000).startswith(b"HTTP/1.1 ")
        with suppress(ConnectionError):  # that it is closed; waiting for too long is an error
            connection.sendall(b"x")
            while connection.recv(4000):
                pass
