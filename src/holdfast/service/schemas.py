"""The shapes of requests and responses, for the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from .settings import LONGEST_TEXT, MOST_COLUMNS, MOST_QUERIES

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
