"""Planning with public numbers alone: how far must a label be stable before its answer is hardly ever wrong?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..accounting import Budget
from ..accounting.arithmetic import SCALE
from ..mechanisms import BudgetedResponse, StableResponse, Table
from .simulation import cauchy, paper_epsilon, stable


def distance_needed(table: Table, flips: float = 0.01) -> int | str:
    """The smallest distance from which the true label is missed less often than `flips`; in words where the table ends before it."""
    return next((distance for distance, row in enumerate(table.rows) if row / SCALE < flips), f"beyond {len(table.rows) - 1:,}")


def plan(targets: Iterable[tuple[Budget, int]], classes: int = 2, flips: float = 0.01) -> list[dict[str, Any]]:
    """For each budget and number of queries, the distance each mechanism needs."""
    rows = []
    for budget, queries in targets:
        tables = {
            "cauchy, the paper's composition": cauchy(budget, queries).table(2) if classes == 2 else None,
            "stable response, the paper's composition": StableResponse(paper_epsilon(budget, queries)).table(classes),
            "stable response, optimal composition": stable(budget, queries).table(classes),
            "budgeted response": BudgetedResponse(budget, queries).table(classes) if budget.delta > 0.0 else None,
        }
        needed = {name: None if table is None else distance_needed(table, flips) for name, table in tables.items()}
        rows.append({"epsilon": budget.epsilon, "delta": budget.delta, "queries": queries, "distance": needed})
    return rows
