"""Frames: a data frame of queries gets its answers as a data frame of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .predictor import Answer


def answers_like(queries: Any, answers: Sequence[Answer]) -> Any:
    """Return the answers in a frame if the queries are one, of pandas or polars; else as a list.

    The frame has a column for each field of an answer, and a pandas frame keeps the queries' index.
    """
    library = type(queries).__module__.partition(".")[0]
    if library not in ("pandas", "polars") or not hasattr(queries, "columns"):
        return list(answers)
    rows = [asdict(answer) for answer in answers]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if library == "pandas":
        return type(queries)(columns, index=queries.index)
    return type(queries)(columns)
