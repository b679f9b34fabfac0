"""Sessions of the page: who is signed in, protection against forged forms, and rendering."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from ..errors import AccessDenied, InvalidInput
from ..version import __version__
from .authentication import Principal
from .problems import TOO_LARGE, Forbidden, Problem, request_id
from .runtime import Runtime

SESSION_SECONDS = 8 * 60 * 60
"""How long a session lasts after the sign-in."""

OPEN_FORM_BYTES = 8192
"""The largest form that needs no session."""

_FORMS = {"max_files": 1, "max_fields": 10_050}


def runtime_of_page(request: Request) -> Runtime:
    found: Runtime = request.app.state.runtime
    return found


async def signed_in(request: Request) -> Principal:
    """Return who is signed in; raise AccessDenied if nobody is, or the key has ended."""
    runtime, key_id = runtime_of_page(request), request.session.get("key")
    since = request.session.get("since")
    if not isinstance(key_id, str) or not isinstance(since, int):
        raise AccessDenied("nobody is signed in")
    if not 0 <= time.time() - since <= SESSION_SECONDS:  # a cookie may have been renewed
        raise AccessDenied("the session has ended")
    found = await runtime.authentication.by_id(key_id)
    request.state.log = {"analyst": found.analyst}
    runtime.limits.count_request(found.analyst)
    return found


async def owner_signed_in(request: Request) -> Principal:
    found = await signed_in(request)
    found.require_owner()
    return found


def form_token(request: Request) -> str:
    """Return the token that forms of this session carry."""
    token = request.session.get("form")
    if not isinstance(token, str):
        token = secrets.token_urlsafe(24)
        request.session["form"] = token
    return token


@dataclass(frozen=True)
class Form:
    """The fields of a form, and the content of its file; None if it has no field for one."""

    fields: Mapping[str, str]
    file: bytes | None

    def get(self, name: str) -> str:
        return self.fields.get(name, "")


async def read_form(request: Request, most: int | None = None) -> Form:
    """Return what a form holds; raise Forbidden if another site made the browser send it.

    Args:
        request: The request.
        most: The most bytes that are read; by default the largest body of any request. Forms that
            need no session are small, so that strangers cannot keep the service busy.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise InvalidInput("this form is not in UTF-8; reload the page")
    body = await _read_body(request, most or runtime_of_page(request).settings.max_body)
    try:
        form = await anyio.to_thread.run_sync(_parse_form, request, body)
    except UnicodeError:
        raise InvalidInput("this form is not in UTF-8; reload the page") from None
    token, expected = form.get("form"), request.session.get("form")
    if not isinstance(expected, str) or not hmac.compare_digest(token.encode(), expected.encode()):
        raise Forbidden("this form has expired or is not from this page; go back, reload it")
    return form


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body; stop reading once it is larger than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(TOO_LARGE.status, TOO_LARGE.advice)
    return bytes(body)


def _parse_form(request: Request, body: bytes) -> Form:
    """Return the fields and the file; raise UnicodeError if a field is not text.

    A form of 2 MB takes some tenths of a second: call this in a thread, outside the event loop of
    the service.
    """

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def parse() -> Form:
        file = None
        received = Request(request.scope, receive)
        async with received.form(**_FORMS, max_part_size=len(body)) as parsed:
            fields = {name: value for name, value in parsed.items() if isinstance(value, str)}
            for upload in parsed.values():
                if isinstance(upload, UploadFile):
                    file = await upload.read()
        for text in (*fields, *fields.values()):
            text.encode()  # half a surrogate pair is no text
        return Form(fields, file)

    return asyncio.run(parse())


@cache
def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = lambda value: f"{value:,.4g}"
    found.filters["whole"] = lambda value: f"{value:,}"
    found.filters["percent"] = lambda value: f"{value:.1%}"
    return found


def render(
    request: Request,
    template: str,
    *,
    principal: Principal | None = None,
    status_code: int = 200,
    **facts: Any,
) -> HTMLResponse:
    """Return a page."""
    runtime = runtime_of_page(request)
    text = (
        _templates()
        .get_template(template)
        .render(
            principal=principal,
            dataset=runtime.model.dataset,
            version=__version__,
            form_token=form_token(request),
            path=request.url.path,
            **facts,
        )
    )
    return HTMLResponse(text, status_code, {"Cache-Control": "no-store"})


def error_page(request: Request, problem: Problem, detail: str) -> Response:
    """Return an error as a page, or lead to the sign-in if that is what is missing."""
    if problem.name == "access-denied" and request.url.path != "/sign-in":
        return RedirectResponse("/sign-in", 303)
    shown = detail if problem.shows_detail else problem.advice
    return render(
        request,
        "error.html.j2",
        status_code=problem.status,
        problem=problem,
        detail=shown,
        request_id=request_id(request),
    )
