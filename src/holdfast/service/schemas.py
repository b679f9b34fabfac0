"""The shapes of requests and responses, the reading of queries, and public facts of the model.

A list of all errors, as validators make it, would be far larger than the body.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import from_json

from ..errors import InvalidInput
from ..preprocessing.columns import Category, Column
from ..serving.statement import format_distances
from ..version import __version__
from .runtime import Runtime
from .settings import LONGEST_TEXT, MOST_COLUMNS, MOST_QUERIES


def model_facts(runtime: Runtime) -> dict[str, Any]:
    """Return what anybody may know about the model."""
    model = runtime.model
    return {
        "holdfast": __version__,
        "dataset": model.dataset,
        "training_run": model.run_id,
        "classes": model.class_names(range(model.classes)),
        "columns": [column_facts(column) for column in runtime.columns],
        "record_shape": list(model.members[0].record_shape),
        "neighbours": model.neighbours.value,
        "unit_of_privacy": model.neighbours.unit,
        "certified": format_distances(model.distances),
        "members": len(model.members),
        "mechanism": repr(runtime.predictor.mechanism),
        "recipe": {name: repr(value) for name, value in model.recipe.as_dict().items()},
        "limits": {
            "queries_per_request": runtime.settings.max_queries,
            "bytes_per_request": runtime.settings.max_body,
            "new_answers_per_minute": runtime.settings.answers_per_minute,
        },
    }


def column_facts(column: Column) -> dict[str, Any]:
    """Return the rule of a column: its range or its categories, and whether it may be missing."""
    about = {"name": column.name, "may_be_missing": column.missing is not None}
    if isinstance(column, Category):
        return {
            **about,
            "kind": "category",
            "categories": list(column.categories),
            "other_allowed": column.other,
        }
    return {**about, "kind": "number", "low": column.low, "high": column.high, "log": column.log}


def odds_factor(epsilon: float) -> float:
    """Return by how much an attacker's odds can change at most."""
    return math.exp(epsilon)


def largest_posterior(epsilon: float) -> float:
    """Return how sure an attacker can become who thought that the chances were even."""
    return 1.0 / (1.0 + math.exp(-epsilon))


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]
Cell = Text | StrictBool | StrictInt | Number | None
Row = Annotated[dict[Annotated[str, Field(max_length=200)], Cell], Field(max_length=MOST_COLUMNS)]
Values = Annotated[list[Any], Field(max_length=1_000_000)]


class PredictionBody(BaseModel):
    """Queries. Each is an object with a cell per column, or a list of numbers without a schema."""

    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[Row | Values], Field(min_length=1, max_length=MOST_QUERIES)] = Field(
        examples=[[{"age": 40, "job": "nurse"}]]
    )


class AnswerBody(BaseModel):
    """The answer to one query."""

    label: str | int = Field(description="The name of the class, or its number if it has no name.")
    index: int = Field(description="The number of the class.")
    cost: float = Field(description="What this answer cost; 0 if it was recorded before.")


class PredictionsBody(BaseModel):
    """The answers to a request, in the order of the queries."""

    answers: list[AnswerBody]
    cost: float = Field(description="What the request cost in all.")
    remaining: float = Field(description="What is left of the budget, or of the analyst's share.")
    unit: str = Field(description="What costs are counted in.")
    practice: bool = Field(description="Whether the answers are made up and nothing was charged.")
    request_id: str


class PreviewBody(BaseModel):
    """What a request would cost; nothing was charged."""

    cost: float
    new: int = Field(description="How many queries have no recorded answer yet.")
    fits: int = Field(description="How many new answers the budget still allows.")
    affordable: bool
    remaining: float
    unit: str
    practice: bool
    request_id: str


class BudgetBody(BaseModel):
    """The budget. The owner also sees who spent what."""

    dataset: str
    epsilon: float
    delta: float
    neighbours: str
    unit: str = Field(description="What costs are counted in.")
    limit: float
    spent: float
    remaining: float = Field(description="What is left for you.")
    share_spent: float
    answers: int
    answers_left: int = Field(description="How many new answers of the planned kind you may get.")
    your_spent: float
    closed: str
    by_analyst: dict[str, float] | None = None
    shares: dict[str, float] | None = None


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str


class NewKeyBody(BaseModel):
    """A new key, which is shown only here."""

    key: str
    old_key_ends_after_hours: float


_SHAPE = 'expected {"queries": [{"column": cell, ...}, ...]}, as in /reference'


def read_queries(body: bytes, max_queries: int) -> list[Any]:
    """Return the queries in the body of a request: objects with cells, or lists of numbers.

    Args:
        body: The body.
        max_queries: The most queries that are accepted.

    Raises:
        InvalidInput: If it is not a body of queries. The message holds none of its values.
    """
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"the body is not JSON ({str(error)[:100]}); {_SHAPE}") from None
    if not isinstance(found, dict) or found.keys() != {"queries"}:
        raise InvalidInput(f"the body is not an object with `queries` alone; {_SHAPE}")
    queries = found["queries"]
    if not isinstance(queries, list) or not queries:
        raise InvalidInput(f"queries: holds no list of queries; {_SHAPE}")
    if len(queries) > max_queries:
        raise InvalidInput(
            f"{len(queries):,} queries in a request: expected at most {max_queries:,}; "
            "send several requests"
        )
    return [_query(number, query) for number, query in enumerate(queries)]


def _query(number: int, query: Any) -> Any:
    if isinstance(query, list):
        return query  # its numbers are checked against the shape of a record
    if not isinstance(query, dict) or len(query) > MOST_COLUMNS:
        raise InvalidInput(
            f"queries.{number}: expected an object with a cell per column, or a list of numbers"
        )
    return {name: _cell(number, name, cell) for name, cell in query.items()}


def _cell(number: int, name: str, cell: Any) -> Any:
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str) and len(cell) <= LONGEST_TEXT:
        return cell
    if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
        cell = float(cell) if -(10**300) < cell < 10**300 else math.inf
    if isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell)):
        return cell
    raise InvalidInput(
        f"queries.{number}.{name[:100]}: expected a finite number, a text of at most "
        f"{LONGEST_TEXT} characters, true, false, or null for a missing value"
    )
