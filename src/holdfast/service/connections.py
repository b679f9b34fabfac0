"""Connections: limits on the size of a request's head and on the time that a request takes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
