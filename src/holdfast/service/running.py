"""Running: worker processes that share one socket and are replaced when they end.

uvicorn has a supervisor of its own, which waits for a reply of each worker in turn. While it waits
for one that was killed before it could reply, it replaces no other; and it stops the service if a
worker cannot start, for example because the database is being restarted. This one waits for the
ends of processes alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import uvicorn

from ..errors import InvalidInput
from .connections import LimitedConnection
from .monitoring import log_as_json
from .settings import ServiceSettings

_GRACE_SECONDS = 20  # after a signal to stop, for requests that are being answered
_PAUSE_SECONDS = 2.0  # between two starts of a worker, so that one that cannot start leaves room
_LOG = logging.getLogger("holdfast.service.running")
_SPAWN = multiprocessing.get_context("spawn")


def run(settings: ServiceSettings, host: str, port: int) -> None:
    """Serve until a signal comes; requests that are being answered are finished.

    A worker that ends is replaced, however it ended.

    Args:
        settings: The model, the ledger and the limits.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        InvalidInput: If the port is in use, or the address is not one of this machine.
    """
    with (
        _listen(host, port) as listening,
        tempfile.TemporaryDirectory(prefix="holdfast-metrics-") as folder,
        _stop_signals() as stopped,
    ):
        if settings.workers > 1:  # each worker then counts in a file of its own
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
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
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(
            f"the service cannot listen on host {host!r}, port {port} ({error.strerror}); "
            "choose another port"
        ) from None


def _supervise(
    config: uvicorn.Config, listening: socket.socket, count: int, stopped: Connection
) -> None:
    """Keep `count` workers running until `stopped` can be read, then wait until they have ended."""
    workers: list[SpawnProcess] = []
    try:
        while not stopped.poll():
            started = time.monotonic()
            workers += [_start(config, listening) for _ in range(count - len(workers))]
            wait([stopped, *(worker.sentinel for worker in workers)])
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                _LOG.error("worker %s ended with code %s", worker.pid, worker.exitcode)
            stopped.poll(max(0.0, started + _PAUSE_SECONDS - time.monotonic()))
    finally:
        listening.close()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _start(config: uvicorn.Config, listening: socket.socket) -> SpawnProcess:
    worker = _SPAWN.Process(target=_work, args=(config, listening))
    worker.start()
    return worker


def _work(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve in this worker process until a signal comes, or until the parent process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent passes it on
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    uvicorn.Server(config).run(sockets=[listening])


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


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
