"""Middleware: request ids, limits, padded response times, headers, metrics and structured logs."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import LedgerUnavailable
from ..ledger import Ledger
from .problems import INTERNAL, PROBLEMS, TOO_LARGE, log_unexpected
from .settings import ServiceSettings

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_LOGGED = ("request_id", "method", "route", "status", "milliseconds", "analyst", "queries")
_STEPS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts of requests, over all workers, and the state of the budget."""

    def __init__(self, ledger: Ledger, dataset: str) -> None:
        registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "holdfast_response_seconds",
            "Time until the response ended, after padding.",
            buckets=_STEPS,
            registry=registry,
        )
        self._answers = Counter("holdfast_answers", "Answers given.", registry=registry)
        self._registry = registry
        if _FOLDER in os.environ:
            self._registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._registry.register(_BudgetCollector(ledger, dataset))

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)

    def count_answers(self, answers: int) -> None:
        self._answers.inc(answers)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's format; for the owner alone."""
        return generate_latest(self._registry)


class _BudgetCollector(Collector):
    def __init__(self, ledger: Ledger, dataset: str) -> None:
        self._ledger, self._dataset = ledger, dataset

    def describe(self) -> list[Any]:
        return []  # so that registering it does not read the ledger

    def collect(self) -> Iterator[GaugeMetricFamily]:
        status = self._ledger.status(self._dataset)
        yield GaugeMetricFamily(
            "holdfast_budget_spent_ratio",
            "The part of the budget that is spent.",
            status.share_spent,
        )
        yield GaugeMetricFamily(
            "holdfast_answers_left",
            "New answers that the budget still allows.",
            status.answers_left,
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = {name: getattr(record, name) for name in _LOGGED if hasattr(record, name)}
        return json.dumps(about | known)


def log_as_json() -> None:
    """Send the logs of the service and of the web server to standard error, as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("holdfast.service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    for name in ("uvicorn.access", "python_multipart", "python_multipart.multipart"):
        logging.getLogger(name).disabled = True


_LOG = logging.getLogger(__name__)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HEADER_BYTES = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_BODY_SECONDS = 30.0  # within which the body of a request must arrive
_CLIENT_LEFT = 499  # in logs and metrics: the client left before its request had arrived
_AT_ONCE = ("/healthz", "/readyz", "/metrics", "/static/")


class ServiceMiddleware:
    """What surrounds every request.

    Guarantees:
        A response starts at a multiple of the response step after the request arrived, so that its
        time tells little about the work. Logs and metrics hold no body, no query string and no
        label.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._settings)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or _CLIENT_LEFT
        except asyncio.CancelledError:  # the service stops before this request was answered
            if not exchange.status:
                exchange.step = 0.0  # the event loop may not come back to this request
                response = PROBLEMS[LedgerUnavailable].as_response("", exchange.request_id)
                await response(scope, receive, exchange.send)
            raise
        except Exception as error:
            # An error after the start of the response can only end the connection.
            log_unexpected(error, exchange.request_id)
            if exchange.status:
                raise
            response = INTERNAL.as_response("", exchange.request_id)
            await response(scope, receive, exchange.send)
        finally:
            self._report(exchange)

    def _report(self, exchange: _Exchange) -> None:
        route = getattr(exchange.scope.get("route"), "path", "none")
        seconds = time.monotonic() - exchange.arrived
        self._metrics.count(route, exchange.status, seconds)
        _LOG.info(
            "request",
            extra={
                "request_id": exchange.request_id,
                "method": exchange.scope["method"],
                "route": route,
                "status": exchange.status,
                "milliseconds": round(1000 * seconds),
                **exchange.state.get("log", {}),
            },
        )


class _Exchange:
    """One request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: ServiceSettings
    ) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.arrived, self.status, self.request_id = time.monotonic(), 0, secrets.token_hex(8)
        self.state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self.state["request_id"] = self.request_id
        self._left, self._complete = settings.max_body, False
        announced = (int(value) for name, value in scope["headers"] if name == b"content-length")
        self._too_large = next(announced, 0) > settings.max_body
        self.step = 0.0 if scope["path"].startswith(_AT_ONCE) else settings.response_step

    async def receive(self) -> Message:
        if self._too_large and not self._complete:
            self._complete = True  # nothing of it is read
            raise HTTPException(TOO_LARGE.status, TOO_LARGE.advice)
        message = await self._before_deadline()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise HTTPException(TOO_LARGE.status, TOO_LARGE.advice)
        return message

    async def _before_deadline(self) -> Message:
        """Return the next message; until the body is complete, raise 408 after the deadline."""
        if self._complete:
            return await self._receive()
        left = self.arrived + _BODY_SECONDS - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except TimeoutError:
            raise HTTPException(408, f"the body took more than {_BODY_SECONDS:g} s") from None
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            known = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(pair for pair in _HEADER_BYTES if pair[0] not in known),
                (b"x-request-id", self.request_id.encode()),
            ]
            await self._pad()
        await self._send(message)

    async def _pad(self) -> None:
        if self.step > 0.0:
            spent = time.monotonic() - self.arrived
            await asyncio.sleep(self.step * math.ceil(spent / self.step) - spent)
