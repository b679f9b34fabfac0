"""The pages of analysts: sign in, ask by a form or a CSV, practice, the reference, the errors."""

from __future__ import annotations

import base64
import csv
import io
import time
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from ..errors import AccessDenied, BudgetExhausted, InvalidInput, RateLimited
from ..ledger import BudgetStatus
from ..ledger.accounts import Account
from ..preprocessing import read_csv_bytes
from ..preprocessing.tables import escape_formula
from ..relations import Neighbours
from ..serving import Answer
from .access import Principal
from .page_parts import (
    OPEN_FORM_BYTES,
    Form,
    forecast,
    gauge,
    read_form,
    render,
    runtime_of_page,
    signed_in,
)
from .problems import ALL, problem_of
from .schemas import column_facts, largest_posterior, odds_factor

router = APIRouter()


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    return render(request, "sign_in.html.j2", error="")


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Begin a session for the holder of a key; the session holds its public id only."""
    form = await read_form(request, OPEN_FORM_BYTES)
    try:
        found = await runtime_of_page(request).authentication.principal(form.get("key").strip())
        if not found.key_id:
            raise AccessDenied("sign in with an access key; tokens are for programs")
    except AccessDenied as error:
        return render(request, "sign_in.html.j2", error=str(error), status_code=401)
    request.session.clear()  # a new token for forms, too
    request.session["key"], request.session["since"] = found.key_id, int(time.time())
    return RedirectResponse("/", 303)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    await read_form(request, OPEN_FORM_BYTES)
    request.session.clear()
    return RedirectResponse("/sign-in", 303)


@router.get("/errors")
async def errors(request: Request) -> Response:
    return render(request, "errors.html.j2", problems=[each for each in ALL if each.advice])


@router.get("/reference")
async def reference(request: Request) -> Response:
    """Show the API, from its own description."""
    paths: list[dict[str, Any]] = []
    for path, methods in request.app.openapi()["paths"].items():
        for method, about in methods.items():
            paths.append({"path": path, "method": method.upper(), **about})
    return render(request, "reference.html.j2", paths=paths, url=str(request.base_url).rstrip("/"))


Who = Annotated[Principal, Depends(signed_in)]
_SHOWN_ROWS, _MOST_COLUMNS = 200, 2000
_SECRETS = {
    Neighbours.ADD_REMOVE: "your record was in the data",
    Neighbours.REPLACE: "your record or another was in the data",
    Neighbours.ADD_REMOVE_PERSON: "you were in the data",
    Neighbours.REPLACE_PERSON: "you or somebody else was in the data",
}


@router.get("/")
async def ask_page(request: Request, who: Who) -> Response:
    return await _page(request, who, practice=False)


@router.get("/practice")
async def practice_page(request: Request, who: Who) -> Response:
    return await _page(request, who, practice=True)


@router.post("/")
async def ask(request: Request, who: Who) -> Response:
    return await _answer(request, who, practice=False)


@router.post("/practice")
async def practise(request: Request, who: Who) -> Response:
    return await _answer(request, who, practice=True)


async def _answer(request: Request, who: Principal, practice: bool) -> Response:
    """Answer the queries of the form, or of a file, or show what they would cost."""
    form, runtime = await read_form(request), runtime_of_page(request)
    facts: dict[str, Any] = {"filled": _filled(form)}
    status_code = 200
    try:
        table, content = await _table(request, form)
        count = _length(table)
        if count > runtime.settings.max_queries:
            raise InvalidInput(
                f"{count:,} queries: expected at most {runtime.settings.max_queries:,} at once"
            )
        request.state.log["queries"] = count
        asked = _as_rows(table)  # before anything is charged, so that nothing can fail after it
        if form.get("action") == "ask":
            answers = (
                await anyio.to_thread.run_sync(runtime.practice.answers, table)
                if practice
                else await runtime.ask(who, table, count)
            )
            facts |= _results(asked, answers)
        else:
            facts["preview"] = (
                await anyio.to_thread.run_sync(runtime.practice.preview, table)
                if practice
                else await runtime.preview(who, table)
            )
            facts["content"] = content
    except (InvalidInput, BudgetExhausted, RateLimited) as error:
        facts["error"], status_code = str(error), problem_of(error).status
    return await _page(request, who, practice, status_code, **facts)


async def _page(
    request: Request, who: Principal, practice: bool, status_code: int = 200, **facts: Any
) -> Response:
    runtime = runtime_of_page(request)
    about = await runtime.read(who, lambda account: budget_facts(account, who))
    shown: dict[str, Any] = {
        "error": "",
        "preview": None,
        "results": None,
        "content": "",
        "filled": {},
        **facts,
    }
    return render(
        request,
        "ask.html.j2",
        principal=who,
        status_code=status_code,
        practice=practice,
        columns=[column_facts(column) for column in runtime.columns],
        shape=runtime.model.members[0].record_shape,
        **about,
        **shown,
    )


def budget_facts(account: Account, who: Principal) -> dict[str, Any]:
    """Return the budget as the pages show it: a gauge, a forecast, and the promise in words."""
    status, shown = BudgetStatus.of(account), account.terms.meter.as_float
    by_day = {day: shown(sum(each.values())) for day, each in account.by_day.items()}
    epsilon = status.budget.epsilon
    return {
        "status": status,
        "mine": {
            "left": status.answers_left_by_share.get(who.analyst, status.answers_left),
            "remaining": shown(account.remaining(who.analyst).loss),
            "spent": status.by_analyst.get(who.analyst, 0.0),
        },
        "gauge": gauge(status.share_spent),
        "forecast": forecast(by_day, status.remaining),
        "secret": _SECRETS[status.neighbours],
        "odds": odds_factor(epsilon),
        "largest_posterior": largest_posterior(epsilon),
    }


def _filled(form: Form) -> dict[str, str]:
    """Return what was typed, so that it is there again after an answer."""
    return {
        name.removeprefix("column."): value
        for name, value in form.fields.items()
        if name.startswith("column.")
    }


async def _table(request: Request, form: Form) -> tuple[Any, str]:
    """Return the queries, and the text of the CSV if they came in one."""
    runtime = runtime_of_page(request)
    content = form.get("content").encode() if form.file is None else form.file
    if content or form.file is not None:
        if not content:
            raise InvalidInput("the file is empty, or none was chosen; choose a CSV file")
        if not runtime.columns:
            raise InvalidInput("this model has no schema, so it cannot read tables")
        table = await anyio.to_thread.run_sync(
            read_csv_bytes, content, "the file", runtime.model.preprocessing, _MOST_COLUMNS
        )
        return table, content.decode("utf-8", "replace")
    filled = _filled(form)
    if not runtime.columns:
        return [_numbers(filled.get("", ""))], ""
    cells: dict[str, Any] = {}
    for column in runtime.columns:
        cells[column.name] = [filled.get(column.name, "")]
    return cells, ""


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InvalidInput("expected numbers, separated by commas or blanks") from None


def _length(table: Any) -> int:
    return len(next(iter(table.values()))) if isinstance(table, dict) else len(table)


def _as_rows(table: Any) -> list[list[Any]]:
    """Return the names of the columns and then the rows, safe for spreadsheets."""
    if isinstance(table, list):
        return [[], *table]
    if isinstance(table, dict):
        names, columns = list(table), list(table.values())
    else:  # by position: a CSV may have two columns of one name
        names, columns = table.column_names, [cells.to_pylist() for cells in table.columns]
    rows = [names, *zip(*columns, strict=True)]
    return [[escape_formula(cell) for cell in row] for row in rows]


def _results(asked: list[list[Any]], answers: list[Answer]) -> dict[str, Any]:
    """Return the answers for the page, and as a CSV to download."""
    (names, *rows), text = asked, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "answer" if "label" in names else "label"])
    for row, found in zip(rows, answers, strict=True):
        writer.writerow([*row, escape_formula(found.label)])
    return {
        "results": [
            {"number": number, "label": found.label, "cost": found.cost}
            for number, found in enumerate(answers[:_SHOWN_ROWS], 1)
        ],
        "total": {
            "count": len(answers),
            "cost": sum(found.cost for found in answers),
            "remaining": answers[-1].remaining,
        },
        "download": base64.b64encode(text.getvalue().encode()).decode(),
    }
