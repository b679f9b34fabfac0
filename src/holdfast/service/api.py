"""The HTTP API: private predictions, previews, practice, budget, model, statement and ledger."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ..errors import InvalidInput
from ..ledger import BudgetStatus, rotate_key
from ..serving import Answer, Preview, privacy_statement, statement_facts
from .access import Principal
from .problems import request_id
from .runtime import Runtime
from .schemas import (
    BudgetBody,
    NewKeyBody,
    PredictionBody,
    PredictionsBody,
    PreviewBody,
    ProblemBody,
    model_facts,
    read_queries,
)

_BEARER = HTTPBearer(
    auto_error=False, description="An access key, or a token of the configured issuer."
)
_OVERLAP_HOURS = 24.0
_NO_STORE = {"Cache-Control": "no-store"}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "model": ProblemBody,
        "description": about,
        "content": {"application/problem+json": {}},
    }
    for status, about in {
        401: "No valid key.",
        403: "The role or the budget does not suffice.",
        413: "The body is too large.",
        422: "The request is not understood.",
        429: "Too many requests.",
        503: "The ledger cannot be reached or trusted.",
    }.items()
}
_QUERIES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PredictionBody.model_json_schema(mode="validation")}
        },
    }
}
router = APIRouter(prefix="/v1", responses=_PROBLEMS)
probes = APIRouter()


def runtime_of(request: Request) -> Runtime:
    found: Runtime = request.app.state.runtime
    return found


async def principal_of(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Principal:
    """Return who asks, and count the request."""
    runtime = runtime_of(request)
    found = await runtime.authentication.principal(None if bearer is None else bearer.credentials)
    request.state.log = {"analyst": found.analyst}
    runtime.limits.count_request(found.analyst)
    return found


Who = Annotated[Principal, Depends(principal_of)]


async def owner_of(who: Who) -> Principal:
    who.require_owner()
    return who


Owner = Annotated[Principal, Depends(owner_of)]


async def _queries(request: Request, _: Who) -> tuple[Any, int]:
    """Return the queries in the body, as the predictor takes them, and their number."""
    runtime = runtime_of(request)
    queries = read_queries(await request.body(), runtime.settings.max_queries)
    request.state.log["queries"] = len(queries)
    return runtime.table(queries), len(queries)


Queries = Annotated[tuple[Any, int], Depends(_queries)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A name for this request, of 1 to 200 printable ASCII characters. If it is "
        "sent again with the same queries, the recorded answers are returned, and nothing is "
        "charged twice. A request in which nothing is new leaves no trace, and does not use up "
        "its name.",
    ),
]


@router.post("/predictions", response_model=PredictionsBody, openapi_extra=_QUERIES)
async def predict(
    request: Request, who: Who, queries: Queries, idempotency_key: IdempotencyKey = None
) -> Response:
    """Answer queries privately, after charging the budget.

    All queries are answered or none. A query that you asked before costs nothing.
    """
    runtime = runtime_of(request)
    key = _checked(idempotency_key)
    answers = await runtime.ask(who, *queries, key)
    return _json(_as_predictions(request, answers, practice=False))


@router.post("/predictions/preview", response_model=PreviewBody, openapi_extra=_QUERIES)
async def preview(request: Request, who: Who, queries: Queries) -> Response:
    """Return what queries would cost; nothing is answered or charged."""
    found = await runtime_of(request).preview(who, queries[0])
    return _json(_as_preview(request, found, practice=False))


@router.post("/practice/predictions", response_model=PredictionsBody, openapi_extra=_QUERIES)
async def practise(
    request: Request,
    who: Who,
    queries: Queries,
    idempotency_key: IdempotencyKey = None,
    refuse: Annotated[
        str | None, Query(description="A refusal to try out, such as budget-exhausted.")
    ] = None,
) -> Response:
    """Return made-up answers of the same shape; no private model is used, nothing is charged."""
    runtime = runtime_of(request)
    practice = runtime.practice
    _checked(idempotency_key)
    await runtime.read(who, lambda _: None)
    if refuse is not None:
        practice.refuse(refuse)
    return _json(_as_predictions(request, practice.answers(queries[0]), practice=True))


@router.post("/practice/predictions/preview", response_model=PreviewBody, openapi_extra=_QUERIES)
async def practise_preview(request: Request, who: Who, queries: Queries) -> Response:
    """Return what queries would cost from a new budget."""
    runtime = runtime_of(request)
    await runtime.read(who, lambda _: None)
    return _json(_as_preview(request, runtime.practice.preview(queries[0]), practice=True))


@router.get("/budget", response_model=BudgetBody)
async def budget(request: Request, who: Who) -> Response:
    """Return what was granted, what is spent, and what is left for you."""
    runtime = runtime_of(request)

    def look(account: Any) -> dict[str, Any]:
        status = BudgetStatus.of(account)
        shown = account.terms.meter.as_float
        return {
            "dataset": status.name,
            "epsilon": status.budget.epsilon,
            "delta": status.budget.delta,
            "neighbours": status.neighbours.value,
            "unit": status.unit,
            "limit": status.limit,
            "spent": status.spent,
            "remaining": shown(account.remaining(who.analyst).loss),
            "share_spent": status.share_spent,
            "answers": status.answers,
            "answers_left": status.answers_left_by_share.get(who.analyst, status.answers_left),
            "your_spent": status.by_analyst.get(who.analyst, 0.0),
            "closed": status.closed,
            "by_analyst": status.by_analyst if who.is_owner else None,
            "shares": status.shares if who.is_owner else None,
        }

    return _json(await runtime.read(who, look))


@router.get("/model")
async def model(request: Request, who: Who) -> Response:
    """Return public facts about the model: classes, schema, recipe, relation and mechanism."""
    runtime = runtime_of(request)
    await runtime.read(who, lambda _: None)
    return _json(model_facts(runtime))


@router.get(
    "/statement",
    responses={200: {"content": {"text/markdown": {}, "application/json": {}}}},
)
async def statement(
    request: Request,
    who: Who,
    format: Annotated[str | None, Query(description="markdown or json.")] = None,
) -> Response:
    """Return the privacy statement, in Markdown, or in JSON if that is accepted."""
    runtime = runtime_of(request)
    if format not in (None, "markdown", "json"):
        raise InvalidInput(f"format={str(format)[:50]!r}: expected markdown or json")
    status = await runtime.status(who)
    accepted = request.headers.get("accept", "")
    if format == "json" or (format is None and "application/json" in accepted):
        return _json(statement_facts(runtime.model, status))
    text = privacy_statement(runtime.model, status)
    return Response(text, 200, _NO_STORE, media_type="text/markdown; charset=utf-8")


@router.get("/ledger")
async def ledger(
    request: Request,
    who: Owner,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Return entries after this.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="The most entries.")] = 1000,
) -> Response:
    """Return the ledger's entries of this data set, verified. For the owner."""
    runtime = runtime_of(request)
    entries = [entry._asdict() for entry in await runtime.entries(who, after, limit)]
    total = await runtime.read(who, lambda account: account.entries)
    return _json({"verified": True, "total": total, "entries": entries})


@router.post("/keys/rotate", response_model=NewKeyBody)
async def rotate(request: Request, who: Who) -> Response:
    """Replace the key of this request, once; the old key stays valid for a day."""
    runtime = runtime_of(request)
    if not who.key_id:
        raise InvalidInput("you came with a token of the issuer; get a new one there")

    def work() -> str:
        return rotate_key(
            runtime.ledger, runtime.model.dataset, who.key_id, overlap_hours=_OVERLAP_HOURS
        )

    key = await runtime.act(who, work)
    return _json({"key": key, "old_key_ends_after_hours": _OVERLAP_HOURS})


@probes.get("/healthz")
async def health() -> Response:
    """Return that the process runs."""
    return _json({"status": "alive"})


@probes.get("/readyz", responses={503: _PROBLEMS[503]})
async def ready(request: Request) -> Response:
    """Return whether the ledger can be used; if not, a problem with status 503."""
    await runtime_of(request).check_ledger()
    return _json({"status": "ready"})


@probes.get("/metrics", responses=_PROBLEMS)
async def metrics(request: Request, who: Owner) -> Response:
    """Return metrics for Prometheus. For the owner: exact times would undo the padding."""
    runtime = runtime_of(request)
    text = await runtime.act(who, runtime.metrics.text)
    return Response(text, 200, _NO_STORE, media_type="text/plain; version=0.0.4")


def _checked(idempotency_key: str | None) -> str:
    if idempotency_key is None:
        return ""
    if not re.fullmatch(r"[\x20-\x7e]{1,200}", idempotency_key):
        raise InvalidInput("Idempotency-Key: expected 1 to 200 printable ASCII characters")
    return idempotency_key


def _json(content: Any) -> Response:
    return Response(json.dumps(content), 200, _NO_STORE, media_type="application/json")


def _as_predictions(request: Request, answers: list[Answer], practice: bool) -> dict[str, Any]:
    return {
        "answers": [
            {"label": answer.label, "index": answer.index, "cost": answer.cost}
            for answer in answers
        ],
        "cost": sum(answer.cost for answer in answers),
        "remaining": answers[-1].remaining,
        "unit": runtime_of(request).unit,
        "practice": practice,
        "request_id": request_id(request),
    }


def _as_preview(request: Request, found: Preview, practice: bool) -> dict[str, Any]:
    return {
        "cost": found.cost,
        "new": found.new,
        "fits": found.fits,
        "affordable": found.new <= found.fits,
        "remaining": found.remaining,
        "unit": runtime_of(request).unit,
        "practice": practice,
        "request_id": request_id(request),
    }
