"""Running: start the worker processes and replace those that die."""

from __future__ import annotations

import os
import tempfile

import uvicorn

from .connections import LimitedConnection
from .monitoring import log_as_json
from .settings import ServiceSettings

_GRACE_SECONDS = 20  # after a signal to stop, for requests that are being answered
_START_SECONDS = 120  # a worker that does not respond for so long is replaced; it imports torch


def run(settings: ServiceSettings, host: str, port: int) -> None:
    """Serve until a signal comes; requests that are being answered are finished.

    Args:
        settings: The model, the ledger and the limits.
        host: The address to listen on.
        port: The port to listen on.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-metrics-") as folder:
        if settings.workers > 1:  # each worker then counts in a file of its own
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        settings.export()
        log_as_json()
        uvicorn.run(
            "holdfast.service.app:worker_app",
            factory=True,
            host=host,
            port=port,
            workers=settings.workers,
            http=LimitedConnection,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_worker_healthcheck=_START_SECONDS,
            limit_concurrency=1000,
        )
