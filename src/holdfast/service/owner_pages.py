"""The owner's pages: spending, expected accuracy, keys, and the life cycle of the budget."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from ..accounting import Budget
from ..errors import HoldfastError, InvalidInput
from ..ledger import COLUMNS, BudgetStatus, add_key, revoke_key
from ..ledger.accounts import Account
from ..mechanisms import AnswerMechanism, BudgetedResponse, StableResponse
from ..preprocessing import read_csv_bytes, read_labels
from ..preprocessing.tables import escape_formula
from ..serving import PrivatePredictor
from .access import Principal
from .analyst_pages import budget_facts
from .page_parts import Form, curve, owner_signed_in, read_form, render, runtime_of_page, spending
from .problems import problem_of
from .runtime import Runtime

_COUNTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_MOST_ROWS, _MOST_COLUMNS = 5000, 2000


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Expected accuracies on a labelled file.

    `points` holds, for each number of answers, the accuracy if the rest of the budget were planned
    for so many; `now` is the number of answers that are left, with the accuracy that they have.
    `commonest` is the accuracy of always giving the commonest label.
    """

    rows: int
    plain: float
    commonest: float
    points: tuple[tuple[int, float], ...]
    now: tuple[int, float] | None


def expected_accuracy(
    predictor: PrivatePredictor, status: BudgetStatus, content: bytes, label: str
) -> ExpectedAccuracy:
    """Return the expected accuracy of answers on a labelled CSV.

    Args:
        predictor: The predictor whose model and mechanism answer.
        status: The status of the budget.
        content: The bytes of the CSV.
        label: The column of right answers.

    Raises:
        InvalidInput: If the file cannot be read, or nothing is left of the budget.
    """
    model, source = predictor.model, Path("the file")
    if not content:
        raise InvalidInput("the file is empty, or none was chosen; choose a labelled CSV file")
    table = read_csv_bytes(content, str(source), model.preprocessing, _MOST_COLUMNS)
    if len(table) > _MOST_ROWS:
        raise InvalidInput(f"{len(table):,} rows: expected at most {_MOST_ROWS:,}; send fewer")
    labels = read_labels(table, label, source, model.preprocessing, model.classes)
    certificate = model.certify(table)
    if status.remaining <= 0.0:
        raise InvalidInput("nothing is left of the budget, so there is nothing to expect")

    def accuracy(mechanism: AnswerMechanism) -> float:
        return float(mechanism.answer_probability(certificate, labels).mean())

    points = tuple((count, accuracy(_planned(status, count))) for count in _COUNTS)
    now, mechanism = None, predictor.mechanism
    if isinstance(mechanism, AnswerMechanism) and status.answers_left:
        now = (status.answers_left, accuracy(mechanism))
    plain = float((certificate.labels == labels).double().mean())
    commonest = float(labels.bincount().max()) / len(labels)
    return ExpectedAccuracy(len(table), plain, commonest, points, now)


def _planned(status: BudgetStatus, count: int) -> AnswerMechanism:
    """Return the mechanism for what is left of the budget, planned for so many answers."""
    if status.order is None:
        return StableResponse(status.remaining / count)
    rest = Budget(status.budget.epsilon - status.spent, status.budget.delta)
    return BudgetedResponse(rest, count, order=status.order)


router = APIRouter(prefix="/owner")
Who = Annotated[Principal, Depends(owner_signed_in)]
_DAYS_SHOWN = 30


@router.get("")
async def owner_page(request: Request, who: Who) -> Response:
    return await _page(request, who)


@router.post("/budget/raise")
async def raise_budget(request: Request, who: Who) -> Response:
    def act(runtime: Runtime, form: Form) -> str:
        budget = Budget(_number(form, "epsilon"), _number(form, "delta"))
        runtime.ledger.raise_budget(runtime.model.dataset, budget, reason=_reason(form))
        return f"The budget was raised to {budget}."

    return await _act(request, who, act)


@router.post("/budget/close")
async def close_budget(request: Request, who: Who) -> Response:
    def act(runtime: Runtime, form: Form) -> str:
        dataset = runtime.model.dataset
        if form.get("dataset") != dataset:
            raise InvalidInput(f"type the name of the data set, {dataset}, to close its budget")
        runtime.ledger.close_budget(dataset, reason=_reason(form))
        return "The budget was closed. Recorded answers can still be asked for."

    return await _act(request, who, act)


@router.post("/budget/create")
async def create_budget(request: Request, who: Who) -> Response:
    def act(runtime: Runtime, form: Form) -> str:
        name = form.get("dataset")
        if name and runtime.ledger.other_ledgers_with(name):  # where they are is not for the page
            raise InvalidInput(
                f"{name[:200]!r} has a budget in another ledger of this owner; budgets of two "
                "ledgers add up: use that one"
            )
        runtime.ledger.create_budget(
            name,
            Budget(_number(form, "epsilon"), _number(form, "delta")),
            neighbours=form.get("neighbours"),
            queries=_whole(form, "queries"),
        )
        return f"{name} has a budget now. Train a model for it, and serve it."

    return await _act(request, who, act)


@router.post("/keys")
async def new_key(request: Request, who: Who) -> Response:
    shown: dict[str, Any] = {}

    def act(runtime: Runtime, form: Form) -> str:
        analyst, role = form.get("analyst"), form.get("role")
        shown["new_key"] = add_key(
            runtime.ledger, runtime.model.dataset, analyst, role=role, days=_number(form, "days")
        )
        return f"Copy the key of {analyst} now: it is not shown again."

    return await _act(request, who, act, shown)


@router.post("/keys/revoke")
async def end_key(request: Request, who: Who) -> Response:
    def act(runtime: Runtime, form: Form) -> str:
        key_id = form.get("id")
        if key_id == who.key_id:
            raise InvalidInput("this is the key that you are signed in with; use another to end it")
        revoke_key(runtime.ledger, runtime.model.dataset, key_id)
        return f"The key {key_id} was revoked."

    return await _act(request, who, act)


@router.post("/accuracy")
async def accuracy(request: Request, who: Who) -> Response:
    """Show the expected accuracy on a labelled file, which is not kept."""
    form, runtime = await read_form(request), runtime_of_page(request)
    try:
        content = form.file or b""
        status = await runtime.status(who)
        found = await anyio.to_thread.run_sync(
            expected_accuracy, runtime.predictor, status, content, form.get("label")
        )
    except HoldfastError as error:
        return await _page(request, who, problem_of(error).status, error=str(error))
    return await _page(request, who, accuracy=found)


@router.get("/ledger.csv")
async def export(request: Request, who: Who) -> Response:
    """Return all entries of the ledger, verified, as a file; it breaks off if one is damaged."""
    runtime = runtime_of_page(request)
    await runtime.status(who)  # raises before the file begins

    def lines() -> Iterator[str]:
        yield _as_csv([COLUMNS])
        for page in runtime.pages():
            yield _as_csv([[escape_formula(cell) for cell in entry] for entry in page])

    name = f"ledger-{datetime.now(UTC):%Y-%m-%d}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(lines(), 200, headers, "text/csv; charset=utf-8")


def _as_csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


async def _act(
    request: Request, who: Principal, act: Any, shown: dict[str, Any] | None = None
) -> Response:
    """Do what a form asks for, in a thread, and show the page with the outcome."""
    form, runtime = await read_form(request), runtime_of_page(request)
    try:
        message = await runtime.act(who, partial(act, runtime, form))
    except HoldfastError as error:
        if not problem_of(error).shows_detail:
            raise
        return await _page(request, who, problem_of(error).status, error=str(error))
    return await _page(request, who, message=message, **(shown or {}))


async def _page(request: Request, who: Principal, status_code: int = 200, **facts: Any) -> Response:
    about = await runtime_of_page(request).read(who, lambda account: _account_facts(account, who))
    shown: dict[str, Any] = {
        "error": "",
        "message": "",
        "new_key": "",
        "accuracy": None,
        "curve": "",
        **facts,
    }
    found = shown["accuracy"]
    if isinstance(found, ExpectedAccuracy):
        shown["curve"] = curve(found.points, found.now, found.commonest)
    return render(
        request, "owner.html.j2", principal=who, status_code=status_code, **about, **shown
    )


def _account_facts(account: Account, who: Principal) -> dict[str, Any]:
    now, shown = datetime.now(UTC), account.terms.meter.as_float
    days = _days(account, now)
    analysts = sorted({analyst for day in days for analyst in account.by_day.get(day, {})})
    spent = {
        analyst: [shown(account.by_day.get(day, {}).get(analyst, 0)) for day in days]
        for analyst in analysts
    }
    return {
        **budget_facts(account, who),
        "days": days,
        "spent": spent,
        "chart": spending(days, spent) if days else "",
        "keys": [key.as_dict() for key in account.keys.values()],
        "events": [_event(entry) for entry in reversed(account.events[-50:])],
    }


def _days(account: Account, now: datetime) -> list[str]:
    """Return the last days, from the first one on which something was spent."""
    last = [(now - timedelta(days=back)).date().isoformat() for back in range(_DAYS_SHOWN)]
    first = min((day for day in account.by_day if day >= last[-1]), default=None)
    return [] if first is None else [day for day in reversed(last) if day >= first]


def _event(entry: Any) -> dict[str, str]:
    """Return one of the owner's acts in words."""
    about = json.loads(entry.about) if entry.about else {}
    budget = about.get("budget", {})
    words = {
        "grant": f"granted ({budget.get('epsilon')}, {budget.get('delta')})",
        "share": f"share of {entry.analyst}: {about.get('share')}",
        "close": "closed",
        "key": f"key {entry.question} for {entry.analyst} ({about.get('role')})",
        "revoke": f"key {entry.question} of {entry.analyst} ends",
    }
    return {
        "time": entry.time[:16].replace("T", " "),
        "what": words[entry.kind],
        "reason": str(about.get("reason", "")),
    }


def _number(form: Form, name: str) -> float:
    text = form.get(name).strip()
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{name}: {text[:50]!r} is not a number") from None


def _whole(form: Form, name: str) -> int:
    number = _number(form, name)
    if not number.is_integer():
        raise InvalidInput(f"{name}={number:g}: expected a whole number")
    return int(number)


def _reason(form: Form) -> str:
    reason = form.get("reason").strip()
    if not reason:
        raise InvalidInput("the reason is missing: it is kept in the ledger, for auditors")
    return reason
