"""How stable a label must be for reliable answers, from public numbers alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from ..accounting import Budget
from ..accounting.arithmetic import SCALE
from ..checks import check_integer
from ..errors import InvalidInput
from ..mechanisms import BudgetedResponse, StableResponse
from ..mechanisms.mechanism import TableMechanism
from .outcomes import make_cauchy, make_stable, paper_epsilon


def distance_needed(
    mechanism: TableMechanism, *, classes: int = 2, flips: float = 0.01
) -> int | str:
    """Return the smallest distance from which the true label is missed less often than `flips`.

    If the mechanism's table ends before that distance, return a text that says so.
    """
    # Most tables are many times longer than what is read here, so they are built piece by piece.
    for reach in (8**power * 128 - 1 for power in count()):
        rows = mechanism.table(classes, reach).rows
        found = next((place for place, row in enumerate(rows) if row / SCALE < flips), None)
        if found is not None:
            return found
        if len(rows) <= reach:
            return f"beyond {len(rows) - 1:,}"
    raise AssertionError("unreachable")


def needed_distances(
    targets: Iterable[tuple[Budget, int]], *, classes: int = 2, flips: float = 0.01
) -> list[dict[str, Any]]:
    """Return the distance that each mechanism needs, per budget and number of queries.

    Only public numbers are used: no model and no records. `targets` are pairs of a total budget and
    the number of queries that it has to last for; `flips` is how often an answer may differ from
    the true label because of noise.

    Returns:
        One dictionary per target, with `epsilon`, `delta`, `queries`, and `distance` by mechanism:
        an integer, a text if the table ends before, or None if the mechanism does not apply.

    Raises:
        InvalidInput: If `flips` is not between 0 and 1.
    """
    if not 0.0 < flips < 1.0:
        raise InvalidInput(f"flips={flips!r}: expected a number between 0 and 1; try 0.01")
    rows = []
    for budget, queries in _pairs(targets):
        mechanisms = {
            "cauchy, the paper's composition": make_cauchy(budget, queries)
            if classes == 2
            else None,
            "stable response, the paper's composition": StableResponse(
                paper_epsilon(budget, queries)
            ),
            "stable response, optimal composition": make_stable(budget, queries),
            "budgeted response": BudgetedResponse(budget, queries) if budget.delta > 0.0 else None,
        }
        needed = {
            name: None
            if mechanism is None
            else distance_needed(mechanism, classes=classes, flips=flips)
            for name, mechanism in mechanisms.items()
        }
        rows.append(
            {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "queries": queries,
                "distance": needed,
            }
        )
    return rows


def _pairs(targets: Iterable[tuple[Budget, int]]) -> list[tuple[Budget, int]]:
    try:
        pairs = [(budget, check_integer("queries", count, 1)) for budget, count in targets]
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"targets={targets!r}: expected pairs of an hf.Budget and a number of queries ({error})"
        ) from None
    if not pairs or not all(isinstance(budget, Budget) for budget, _ in pairs):
        raise InvalidInput(
            f"targets={targets!r}: expected pairs of an hf.Budget and a number of queries"
        )
    return pairs
