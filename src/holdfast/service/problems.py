"""Problems: every error as one JSON shape (RFC 9457), without anything private in it."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ..errors import (
    AccessDenied,
    BudgetExhausted,
    CopiedLedger,
    HoldfastError,
    InvalidInput,
    LedgerUnavailable,
    RateLimited,
    TamperedLedger,
)

_LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class Forbidden(AccessDenied):
    """The key is valid, but its role does not allow this."""


@dataclass(frozen=True)
class Problem:
    """A kind of error, as clients see it."""

    name: str
    status: int
    title: str
    advice: str
    shows_detail: bool = True  # whether the error's own message is meant for clients
    retry_after: int | None = None

    def as_response(self, detail: str, request_id: str) -> Response:
        """Return the response."""
        body = {
            "type": f"/errors#{self.name}",
            "title": self.title,
            "status": self.status,
            "detail": detail if self.shows_detail else self.advice,
            "request_id": request_id,
        }
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(json.dumps(body), self.status, headers, MEDIA_TYPE)


# The first class that fits decides.
PROBLEMS: dict[type[Exception], Problem] = {
    Forbidden: Problem(
        "forbidden",
        403,
        "This needs the owner's role",
        "Use a key of the owner, made with `holdfast keys add --role owner`.",
    ),
    AccessDenied: Problem(
        "access-denied",
        401,
        "No valid key",
        "Send the header `Authorization: Bearer KEY`; the owner makes keys with `holdfast keys "
        "add`. Expired, revoked and unknown keys get the same answer.",
    ),
    BudgetExhausted: Problem(
        "budget-exhausted",
        403,
        "The budget does not suffice",
        "Nothing was answered or charged. Ask for fewer new queries, or ask the owner; recorded "
        "answers are still free.",
    ),
    RateLimited: Problem(
        "rate-limited",
        429,
        "Too many requests",
        "Nothing was answered or charged. Try again after the seconds in the header Retry-After.",
        retry_after=60,
    ),
    InvalidInput: Problem(
        "invalid-input",
        422,
        "The request is not understood",
        "Nothing was answered or charged. The detail names the value and what was expected.",
    ),
    CopiedLedger: Problem(
        "ledger-copied",
        503,
        "Another copy of the ledger is in use",
        "Nothing was answered. This service uses a copy of a ledger that has gone on elsewhere, "
        "and two would spend the budget twice. The owner must give it the other one; the log and "
        "`holdfast doctor` name its place.",
        shows_detail=False,
    ),
    TamperedLedger: Problem(
        "ledger-damaged",
        503,
        "The ledger cannot be trusted",
        "Nothing was answered. The owner must look at it: `holdfast budget verify`.",
        shows_detail=False,
    ),
    LedgerUnavailable: Problem(
        "ledger-unavailable",
        503,
        "The ledger cannot be reached",
        "Nothing was answered. Try again soon, with the same idempotency key: if the charge was "
        "stored after all, the recorded answer is returned and nothing is charged twice.",
        shows_detail=False,
        retry_after=1,
    ),
    HoldfastError: Problem(
        "not-answered",
        422,
        "This query cannot be answered",
        "Nothing was answered or charged.",
    ),
}
INTERNAL = Problem(
    "internal",
    500,
    "An error inside the service",
    "Tell the owner the request id; the log says more. Nothing was answered.",
    shows_detail=False,
)
TOO_LARGE = Problem(
    "too-large", 413, "The request is too large", "Send fewer queries in a request."
)
NOT_FOUND = Problem("not-found", 404, "There is nothing here", "The paths are in /reference.")
OTHER = Problem("not-accepted", 400, "The request is not accepted", "The title says why.")
ALL = (*PROBLEMS.values(), INTERNAL, TOO_LARGE, NOT_FOUND, OTHER)


def problem_of(error: Exception) -> Problem:
    """Return the kind of problem that an error is."""
    return next((found for kind, found in PROBLEMS.items() if isinstance(error, kind)), INTERNAL)


def request_id(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))


ErrorPage = Callable[[Request, Problem, str], Response]
_FOR_PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz", "/openapi.json", "/static/")


def add_handlers(app: FastAPI, error_page: ErrorPage) -> None:
    """Register handlers that answer errors with a problem, or with a page outside the API."""

    def respond(request: Request, found: Problem, detail: str) -> Response:
        if request.url.path.startswith(_FOR_PROGRAMS):
            return found.as_response(detail, request_id(request))
        return error_page(request, found, detail)

    def of_holdfast(request: Request, error: Exception) -> Response:
        found = problem_of(error)
        if not found.shows_detail:
            # What is withheld from the client is for the owner: it names no features or labels.
            _LOG.error("%s", error, extra={"request_id": request_id(request)})
        return respond(request, found, str(error))

    def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {404: NOT_FOUND, 413: TOO_LARGE}
        title = HTTPStatus(error.status_code).phrase
        found = known.get(error.status_code, Problem("not-accepted", error.status_code, title, ""))
        response = respond(request, found, str(error.detail))
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    def of_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, PROBLEMS[InvalidInput], describe(error.errors()))

    app.add_exception_handler(HoldfastError, of_holdfast)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_validation)


def describe(errors: Any) -> str:
    """Return the first error of pydantic in one sentence, without the values."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "header"))
    return f"{place or 'the body'}: {first['msg']}; expected the shape in /reference"


def log_unexpected(error: BaseException, request_id: str) -> None:
    """Log where an unexpected error came from, without its message, which may hold features."""
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    _LOG.error(
        "unexpected %s at %s",
        type(error).__name__,
        " < ".join(reversed(frames)),
        extra={"request_id": request_id},
    )
