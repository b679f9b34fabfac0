"""Parts of all pages: charts as inline SVG, sessions, forms and rendering."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from ..errors import AccessDenied, InvalidInput
from ..version import __version__
from .access import Principal
from .problems import TOO_LARGE, Forbidden, Problem, request_id
from .runtime import Runtime

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 44, 14, 40
_COLOURS, _WIDEST_BAR = 6, 60
_DAYS_OF_FORECAST = 7


def gauge(share: float) -> Markup:
    """Return a bar that shows which part of the budget is spent."""
    width = max(0.0, min(1.0, share)) * 596
    level = "high" if share >= 0.9 else "middle" if share >= 0.6 else "low"
    return Markup(
        '<svg class="gauge" viewBox="0 0 600 26" role="img" aria-label="{text} of the budget is '
        'spent" preserveAspectRatio="none">'
        '<rect class="track" x="0" y="0" width="600" height="26" rx="6"/>'
        '<rect class="spent {level}" x="2" y="2" width="{width:.1f}" height="22" rx="5"/></svg>'
    ).format(text=f"{share:.1%}", level=level, width=width)


def forecast(by_day: Mapping[str, float], remaining: float, today: date | None = None) -> str:
    """Return until when the budget lasts at the pace of the last week."""
    now = datetime.now(UTC).date() if today is None else today
    first = (now - timedelta(days=_DAYS_OF_FORECAST - 1)).isoformat()
    recent = sum(loss for day, loss in by_day.items() if day >= first)
    if remaining <= 0.0:
        return "Nothing is left for new answers."
    if recent <= 0.0:
        return "No new answers in the last seven days, so there is no forecast."
    days = remaining / (recent / _DAYS_OF_FORECAST)
    if days > 3650:
        return "At the pace of the last seven days, the budget lasts for more than ten years."
    ends = now + timedelta(days=math.floor(days))
    return (
        f"At the pace of the last seven days, the budget lasts for about {max(1, round(days)):,} "
        f"more days, until {ends:%d %B %Y}."
    )


def spending(days: Sequence[str], by_analyst: Mapping[str, Sequence[float]]) -> Markup:
    """Return stacked bars: what each analyst spent on each day."""
    highest = (
        max((sum(each) for each in zip(*by_analyst.values(), strict=True)), default=0.0) or 1.0
    )
    step = min(_WIDEST_BAR, (_WIDTH - _LEFT - _RIGHT) / max(1, len(days)))
    bars = []
    for place, day in enumerate(days):
        base = 0.0
        for number, (analyst, spent) in enumerate(by_analyst.items()):
            if not spent[place]:
                continue
            top = base + spent[place]
            bars.append(
                Markup(
                    '<rect class="series{number}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" '
                    'height="{h:.1f}"><title>{analyst}, {day}: {value}</title></rect>'
                ).format(
                    number=number % _COLOURS,
                    x=_LEFT + (place + 0.1) * step,
                    y=_y(top / highest),
                    w=0.8 * step,
                    h=_y(base / highest) - _y(top / highest),
                    analyst=analyst,
                    day=day,
                    value=f"{spent[place]:.4g}",
                )
            )
            base = top
    labels = [(_LEFT + (place + 0.5) * step, day[5:]) for place, day in enumerate(days)]
    every = max(1, math.ceil(len(labels) / 10))
    return _framed("What was spent on each day", bars, labels[::every], highest)


def curve(
    points: Sequence[tuple[int, float]], marked: tuple[int, float] | None, floor: float
) -> Markup:
    """Return expected accuracy against the number of answers, on a logarithmic scale."""
    low, high = math.log10(points[0][0]), math.log10(points[-1][0])

    def x(count: float) -> float:
        place = (math.log10(count) - low) / ((high - low) or 1.0)
        return _LEFT + min(1.0, max(0.0, place)) * (_WIDTH - _LEFT - _RIGHT)

    line = " ".join(f"{x(count):.1f},{_y(accuracy):.1f}" for count, accuracy in points)
    parts = [
        Markup('<line class="floor" x1="{l}" x2="{r}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
            l=_LEFT, r=_WIDTH - _RIGHT, y=_y(floor)
        ),
        Markup('<polyline class="curve" points="{line}"/>').format(line=line),
    ]
    if marked is not None:
        parts.append(
            Markup(
                '<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{text}</title>'
                "</circle>"
            ).format(
                x=x(marked[0]), y=_y(marked[1]), text=f"{marked[0]:,} answers: {marked[1]:.1%}"
            )
        )
    decades = range(math.ceil(low), math.floor(high) + 1)
    labels = [(x(10**decade), f"{10**decade:,}") for decade in decades]
    return _framed("Expected accuracy by number of answers", parts, labels, 1.0)


def _y(part: float) -> float:
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _framed(
    title: str, parts: Sequence[Markup], labels: Sequence[tuple[float, str]], highest: float
) -> Markup:
    """Return the parts with axes: five lines across, and labels below."""
    lines = [
        Markup(
            '<line class="grid" x1="{l}" x2="{r}" y1="{y:.1f}" y2="{y:.1f}"/>'
            '<text class="tick end" x="{t}" y="{ty:.1f}">{value}</text>'
        ).format(
            l=_LEFT,
            r=_WIDTH - _RIGHT,
            y=_y(part),
            t=_LEFT - 6,
            ty=_y(part) + 4,
            value=f"{highest * part:.2g}",
        )
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    below = [
        Markup('<text class="tick middle" x="{x:.1f}" y="{y}">{text}</text>').format(
            x=place, y=_HEIGHT - 12, text=text
        )
        for place, text in labels
    ]
    return Markup(
        '<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">{parts}'
        "</svg>"
    ).format(
        width=_WIDTH, height=_HEIGHT, title=title, parts=Markup("").join([*lines, *parts, *below])
    )


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
