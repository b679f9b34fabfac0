"""The privacy statement as data: the fields of NIST SP 800-226 and of the OpenDP registry.

`statement.schema.json`, beside this file, describes the shape.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..ledger import BudgetStatus
from ..models import CertifiedModel
from ..models.linear import CertifiedHead
from ..version import __version__
from .statement import format_distances, promise_unit, public_facts, require_same, unprotected

SCHEMA_VERSION = 1


def statement_facts(model: CertifiedModel, status: BudgetStatus) -> dict[str, Any]:
    """Return the privacy statement, ready for JSON.

    Args:
        model: The model that answers.
        status: The status of the budget of its data set.

    Raises:
        InvalidInput: If the budget is for another data set or relation.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe, options = hf.Recipe(batch_size=100), {"dataset": "ward-7", "progress": False}
        >>> certified = hf.train(torch.nn.Linear(1, 2), x, y, recipe, max_distance=5, **options)
        >>> ledger = hf.Ledger("sqlite:///facts.db", home="keys")
        >>> status = ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
        >>> hf.serving.statement_facts(certified, status)["flavour"].get("name")
        'pure differential privacy'
    """
    require_same(model, status)
    return {
        "schema_version": SCHEMA_VERSION,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "dataset": status.name,
        "flavour": _flavour(status),
        "privacy_unit": {
            "unit": status.neighbours.unit,
            "relation": status.neighbours.value,
            "description": promise_unit(status.neighbours.unit),
            "move": status.neighbours.move,
            "size_is_public": status.neighbours.exchanges,
        },
        "privacy_loss": {
            "epsilon": status.budget.epsilon,
            "delta": status.budget.delta,
            "covers": "all answers and releases together, to all analysts, from all models of the "
            "data set",
            "spent_share": status.share_spent,
            "answers": status.answers,
            "releases": status.releases,
            "closed": bool(status.closed),
        },
        "accounting": _accounting(status),
        "deployment": {
            "trust": "central: one curator holds the records, the model and the key",
            "access": "interactive: analysts ask, and each new answer is charged",
            "data_product": "labels of a classifier, one per query",
        },
        "training": {
            "method": _method(model),
            "run": model.run_id,
            "certified": format_distances(model.distances),
            "members": len(model.members),
            "normaliser": model.recipe.batch_size,
        },
        "public": public_facts(model),
        "not_protected": unprotected(model),
        "implementation": {
            "software": "holdfast",
            "version": __version__,
            "mechanism": "that of the budget, unless the owner's program names another: a label "
            "that is stable at distance k is kept with a probability that grows with k, and "
            "otherwise another one is drawn at random",
            "randomness": "the operating system's generator; exact tables with integer weights",
            "arithmetic": "outward rounding of costs and limits in whole units",
            "timing": "the work for an answer does not depend on whether its label is stable",
        },
    }


def _method(model: CertifiedModel) -> str:
    if isinstance(model.members[0], CertifiedHead):
        return (
            "a convex linear head, whose sensitivity follows from the recipe: a certificate of "
            "stability for each query"
        )
    return "Abstract Gradient Training: a certificate of stability for each query"


def _flavour(status: BudgetStatus) -> dict[str, Any]:
    pure = status.budget.delta == 0.0
    return {
        "name": "pure differential privacy" if pure else "approximate differential privacy",
        "input": "a set of labelled records",
        "output_comparison": "epsilon" if pure else "epsilon, except with probability delta",
        "adversary": "any number of analysts who collude and choose each query after the answers "
        "to those before",
    }


def _accounting(status: BudgetStatus) -> dict[str, Any]:
    return {
        "composition": "sum of epsilons" if status.order is None else "sum of Rényi divergences",
        "order": status.order,
        "counted_in": status.unit,
        "limit": status.limit,
        "spent": status.spent,
        "delta_set_aside": status.reserve,
        "planned_answers": status.queries,
        "post_processing": "none: labels are drawn from the mechanism's table and returned",
        "record": "an append-only, sealed ledger; an answer is returned after its charge is on "
        "disk",
    }
