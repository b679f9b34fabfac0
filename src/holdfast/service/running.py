"""Worker processes that share one socket and are replaced when they end; limited connections.

uvicorn has a supervisor of its own, which waits for a reply of each worker in turn. While it waits
for one that was killed before it could reply, it replaces no other; and it stops the service if a
worker cannot start, for example because the database is being restarted. This one waits for the
ends of processes alone.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import HoldfastError, InvalidInput
from .middleware import log_as_json
from .settings import ServiceSettings

_LARGEST_HEAD = 64 * 1024
_SLICE = 4096  # bytes that are parsed at once, so that a head is refused before it is complete
_FRAME_BYTES = 8  # around each byte of a chunked body, at most: one byte per chunk takes 6
_HEAD_SECONDS = 10.0
# The middleware refuses a body that a route waits for after 30 s; this ends one that none reads.
_BODY_SECONDS = 35.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)


class LimitedConnection(HttpToolsProtocol):
    """A connection that is closed if a request is too slow, or its head too large.

    All bytes of a request that are not its body count as its head: header fields, what stands
    around the chunks of a body, and fields behind the body.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._received = self._body = 0  # bytes of the present request
        self._in_head = True
        self._ended = False  # whether a request ended in the bytes that just came
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._close_after(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_after(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE):
            if self.transport.is_closing():
                return
            self._slice_received(data[start : start + _SLICE])

    def _slice_received(self, data: bytes) -> None:
        if self._in_head and self._deadline is None:
            self._close_after(_HEAD_SECONDS)
        self._ended = False
        super().data_received(data)
        if self._ended:  # what came behind its end is part of a single slice, so it is small
            self._received = self._body = 0
            return
        self._received += len(data)
        if self._received > _LARGEST_HEAD + (1 + _FRAME_BYTES) * self._body:
            if self._in_head:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._close_after(_BODY_SECONDS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = self._ended = True  # the next request on this connection may come
        self._close_after(None)
        super().on_message_complete()

    def _close_after(self, seconds: float | None) -> None:
        """Close the connection after this time, unless another time is set before; None: never."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            None if seconds is None else self.loop.call_later(seconds, self.transport.close)
        )


_GRACE_SECONDS = 20  # after a signal to stop, for requests that are being answered
_STOP_SECONDS = _GRACE_SECONDS + 5  # after which workers that have not ended are killed
_PAUSE_SECONDS = 2.0  # between two starts of a worker, so that one that cannot start leaves room
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_LOG = logging.getLogger("holdfast.service.running")
_SPAWN = multiprocessing.get_context("spawn")


def run(settings: ServiceSettings, host: str, port: int) -> None:
    """Serve until a signal comes; requests that are being answered are finished.

    A worker that ends is replaced, however it ended. A second signal ends the service at once.

    Args:
        settings: The model, the ledger and the limits.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        InvalidInput: If the port is in use, or the address is not one of this machine.
    """
    with (
        _listen(host, port) as listening,
        _metrics_folder(),
        _stop_signals() as stopped,
    ):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        settings.export()
        log_as_json()
        config = uvicorn.Config(
            "holdfast.service.app:worker_app",
            factory=True,
            host=host,
            port=port,
            http=LimitedConnection,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            limit_concurrency=1000,
        )
        _supervise(config, listening, settings.workers, stopped)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = host == "::" and socket.has_dualstack_ipv6()  # IPv4, too
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise InvalidInput(
            f"the service cannot listen on host {host!r}, port {port} ({error.strerror}); "
            "choose another port"
        ) from None


def _supervise(
    config: uvicorn.Config, listening: socket.socket, count: int, stopped: Connection
) -> None:
    """Keep `count` workers running until `stopped` can be read, then end them."""
    workers: list[SpawnProcess] = []
    try:
        while not stopped.poll():
            started = time.monotonic()
            try:
                while len(workers) < count:
                    workers.append(_start(config, listening))
            except OSError as error:  # too many processes or files; the other workers go on
                _LOG.error("a worker cannot be started: %s", error)
                stopped.poll(_PAUSE_SECONDS)
                continue
            wait([stopped, *(worker.sentinel for worker in workers)])
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                _LOG.error("worker %s ended with code %s", worker.pid, worker.exitcode)
            stopped.poll(max(0.0, started + _PAUSE_SECONDS - time.monotonic()))
    finally:
        listening.close()
        _end(workers, stopped)


def _end(workers: list[SpawnProcess], stopped: Connection) -> None:
    """Let workers finish their requests; kill them after a time limit or at another signal."""
    while stopped.poll():
        stopped.recv_bytes()
    for worker in workers:
        worker.terminate()
    end = time.monotonic() + _STOP_SECONDS
    while running := [worker for worker in workers if worker.is_alive()]:
        left = end - time.monotonic()
        if left <= 0.0 or stopped.poll():
            for worker in running:
                _LOG.error("worker %s is killed, because it does not end", worker.pid)
                worker.kill()
                worker.join()
        wait([stopped, *(worker.sentinel for worker in running)], max(0.0, left))


def _start(config: uvicorn.Config, listening: socket.socket) -> SpawnProcess:
    if _METRICS in os.environ:
        os.makedirs(os.environ[_METRICS], 0o700, exist_ok=True)  # in case somebody removed it
    worker = _SPAWN.Process(target=_work, args=(config, listening))
    worker.start()
    return worker


def _work(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve in this worker process until a signal comes, or until the parent process has ended."""
    # Before uvicorn handles it, Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = uvicorn.Server(config)
    threading.Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
    try:
        server.run(sockets=[listening])
    except HoldfastError as error:
        log_as_json()
        _LOG.error("this worker cannot serve: %s", error)
        sys.exit(1)


def _stop_with_parent(server: uvicorn.Server) -> None:
    """Wait for the end of the parent process; then end this one, which would hold the port."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if not server.started:  # it may be waiting for the ledger, and it has no request to finish
        os._exit(1)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _metrics_folder() -> Iterator[None]:
    """Let each worker count in a file of its own, in a folder that ends with the service."""
    if _METRICS in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-metrics-") as folder:
        os.environ[_METRICS] = folder
        try:
            yield
        finally:
            del os.environ[_METRICS]


@contextmanager
def _stop_signals() -> Iterator[Connection]:
    """Yield a connection that can be read once a signal to stop has come."""
    stopped, stop = multiprocessing.Pipe(duplex=False)
    before = {
        number: signal.signal(number, lambda *_: stop.send_bytes(b"stop"))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
        stopped.close()
