"""Public facts about the served model, for programs and for the page."""

from __future__ import annotations

import math
from typing import Any

from ..preprocessing.columns import Category, Column
from ..serving.statement import format_distances
from ..version import __version__
from .runtime import Runtime


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


def sureness(epsilon: float) -> float:
    """Return how sure an attacker can become who thought that the chances were even."""
    return 1.0 / (1.0 + math.exp(-epsilon))
