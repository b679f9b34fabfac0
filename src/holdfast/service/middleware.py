"""Middleware: request ids, limits on bodies, padded response times, headers, logs and metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import LedgerUnavailable
from .monitoring import Metrics
from .problems import INTERNAL, PROBLEMS, TOO_LARGE, log_unexpected
from .settings import ServiceSettings

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
        """Return the next part of the body; after it, wait for the client's leaving at leisure."""
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
