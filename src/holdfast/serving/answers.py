"""Answers, as the analyst gets to see them: one by one, or as a data frame like the queries'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..mechanisms import UNSTABLE


@dataclass(frozen=True)
class Answer:
    """The answer to one query: all that the analyst gets to see.

    Attributes:
        label: The name of the class, or its number if the classes have no names;
            `hf.mechanisms.UNSTABLE` if a SparseVector gives no label.
        index: The number of the class, or `hf.mechanisms.UNSTABLE`.
        cost: What the answer cost, in epsilon, or in Rényi divergence if the budget has a delta. A
            recorded answer costs 0.
        remaining: What is left of the budget, or of the analyst's share, in the same unit.

    Example:
        >>> import holdfast as hf
        >>> hf.Answer(label="yes", index=1, cost=0.1, remaining=9.9).label
        'yes'
    """

    label: int | str
    index: int
    cost: float
    remaining: float


@dataclass(frozen=True)
class Preview:
    """What asking would cost.

    `new` is the number of questions without a recorded answer, and `fits` the number of new answers
    that the budget still allows. For a SparseVector, `cost` is that of the next session (many
    queries may need more than one), and `fits` is a number of sessions.
    """

    cost: float
    new: int
    remaining: float
    fits: int


def answers_like(queries: Any, answers: Sequence[Answer]) -> Any:
    """Return the answers in a frame if the queries are one, of pandas or polars; else as a list.

    The frame has a column for each field of an answer, and a pandas frame keeps the queries' index.
    Where a SparseVector gives no label, a column of names holds None.
    """
    library = type(queries).__module__.partition(".")[0]
    if library not in ("pandas", "polars") or not hasattr(queries, "columns"):
        return list(answers)
    rows = [asdict(answer) for answer in answers]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if any(isinstance(label, str) for label in columns["label"]):
        # A column of names has no place for a number that says that there is no label.
        columns["label"] = [None if row["index"] == UNSTABLE else row["label"] for row in rows]
    if library == "pandas":
        return type(queries)(columns, index=queries.index)
    return type(queries)(columns)
