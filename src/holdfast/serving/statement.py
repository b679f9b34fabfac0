"""Statements and model cards: what is promised about a model, what is public, what is not.

`statement.schema.json`, beside this file, describes the shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ..checks import canonical_name, escape_markdown
from ..errors import InvalidInput
from ..heads.ball import FARTHEST
from ..heads.certified import CertifiedHead
from ..heads.released import ABOUT_PERSONS, ReleasedHead
from ..ledger import BudgetStatus
from ..models import CertifiedModel
from ..preprocessing.rules import preprocessing_facts
from ..version import __version__

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


_UNITS = {
    "record": (
        "one record (a person with k records is protected at about kε, "
        "and at a δ that grows faster than k)"
    ),
    "person": "one person, with all of their records",
}


def privacy_statement(model: CertifiedModel, status: BudgetStatus) -> str:
    """Return the statement in Markdown, for the budget of the model's data set and relation."""
    require_same(model, status)
    parts = [
        f"# Privacy statement: {escape_markdown(status.name)}",
        f"holdfast {__version__}, {datetime.now(UTC):%Y-%m-%d}",
        _promise(model, status),
        (
            "## Declared public\n\nThe promise does not cover these: they must not have been "
            "fitted on the private records.\n"
        ),
        "\n".join(f"- {escape_markdown(line)}" for line in public_facts(model)),
        "## Not protected",
        "\n".join(f"- {line}" for line in unprotected(model)),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def require_same(model: CertifiedModel, status: BudgetStatus) -> None:
    """Raise InvalidInput if the budget is for another data set or relation than the model."""
    same = canonical_name(model.dataset) == canonical_name(status.name)
    if not same or model.neighbours != status.neighbours:
        raise InvalidInput(
            f"the model is for {model.dataset!r} under {model.neighbours.value!r}, "
            f"but the budget is for {status.name!r} under {status.neighbours.value!r}; "
            "expected the same data set and relation"
        )


def promise_unit(unit: str) -> str:
    """Return in words what is protected."""
    return _UNITS[unit]


def _promise(model: CertifiedModel, status: BudgetStatus) -> str:
    budget, spent = status.budget, status.spent / status.limit
    rows = {
        "promise": (
            "(ε, δ)-differential privacy of all answers and releases together, "
            f"to all analysts, from all models of {escape_markdown(status.name)}"
        ),
        "ε (epsilon)": f"{budget.epsilon:g}",
        "δ (delta)": f"{budget.delta:g}",
        "unit": _UNITS[status.neighbours.unit],
        "neighbours": f"`{status.neighbours.value}`: {status.neighbours.move}",
        "spent so far": f"{spent:.2%} ({status.answers:,} answers, {status.releases:,} releases), "
        f"counted in {status.unit}",
        "δ set aside": f"{status.reserve:g}, of which {status.reserve_spent:g} is spent",
        "analysts with a share": f"{len(status.shares)}; all others share the whole budget",
        "normaliser": f"{model.recipe.batch_size} (a public number of {status.neighbours.unit}s "
        "that each step divides by)",
        "training run": f"`{model.run_id}` (drawn at random; entries of the ledger name it)",
        "certified": format_distances(model.distances)
        + (f", {len(model.members)} members" if len(model.members) > 1 else ""),
    }
    lines = ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    return "\n".join(lines)


def format_distances(distances: Sequence[int]) -> str:
    """Return in words for which distances a model is certified."""
    if isinstance(distances, range) and len(distances) == FARTHEST:
        return "every distance, without a limit"
    if isinstance(distances, range) or distances == tuple(range(1, len(distances) + 1)):
        return f"every distance in 1..{distances[-1]:,}"
    return f"every distance in the grid {', '.join(map(str, distances))}; its ranks are used"


def public_facts(model: CertifiedModel) -> list[str]:
    """Return what the promise takes as public."""
    recipe = ", ".join(f"{name}={value!r}" for name, value in model.recipe.as_dict().items())
    lines = [f"recipe: {recipe}", *model.members[0].public_facts()]
    lines.append(f"the number of classes: {model.classes}")
    return [*lines, *preprocessing_facts(model.preprocessing)]


def unprotected(model: CertifiedModel) -> list[str]:
    """Return what the promise does not cover."""
    unit = model.neighbours.unit
    return [
        (
            "the saved model, plain predictions, certificates, distances, simulated accuracies "
            "and checkpoints: they are for the owner alone"
        ),
        (
            "what the population reveals about a person: "
            "the model may be right about people whose records it never saw"
        ),
        (
            "scores: how often answers agree with private labels, "
            "and settings that were chosen by such scores"
        ),
        (
            "earlier answers, at the smaller budget of that time: once a budget is raised, all "
            "answers are protected at the larger one only"
        ),
        "who asked how many questions: costs and the remaining budget are shown to all who ask",
        (
            "the questions themselves, from anyone who can read the analyst's side; "
            "the ledger holds keyed hashes of them"
        ),
        *([f"the number of {unit}s"] if model.neighbours.exchanges else []),
        *(ABOUT_PERSONS if unit == "person" else []),
        "answers given outside this ledger, or under another name for the same data",
    ]


_HEADER = """\
---
library_name: holdfast
pipeline_tag: {task}
tags:
- differential-privacy
- {kind}
---

# {title}

{about}

## Use

{use}

## What it was trained with

{facts}

## What it must not be used for

- Decisions about a person that the person cannot contest: a label may be wrong, and private answers
  are wrong a little more often.
- Claims about accuracy: this card holds none, because a score on private records is not private.
  Measure it on public records.

{statement}"""

_ANSWERS = (
    "Private answers of a classifier that holdfast {version} trained with certificates. The file "
    "of the model is as private as the records: publish this card, not the file."
)
_RELEASED = (
    "The weights of a linear classifier, released by holdfast {version} with noise: the file may "
    "be published, and answers any number of queries."
)


def model_card(model: CertifiedModel | ReleasedHead, status: BudgetStatus | None = None) -> str:
    """Return a model card in Markdown, with the metadata of Hugging Face in front.

    It holds public facts only: no accuracy, and no number of records.

    Args:
        model: A trained model, or a released head.
        status: The status of the budget of the model's data set; not needed for a released head.

    Raises:
        InvalidInput: If the status is missing, or is that of another data set or relation.
    """
    released = isinstance(model, ReleasedHead)
    if isinstance(model, ReleasedHead):
        statement, about = model.statement(), _RELEASED
        use = '```python\nimport holdfast as hf\n\nhf.load("released.holdfast").predict(rows)\n```'
    else:
        if status is None:
            raise InvalidInput("status is None: expected what ledger.status(name) returns")
        statement, about = privacy_statement(model, status), _ANSWERS
        use = (
            "Ask the owner. Each new question is charged to a budget, and answers end with it:\n\n"
            "```\nholdfast ask model.holdfast questions.csv --analyst NAME\n```"
        )
    return _HEADER.format(
        task="tabular-classification" if _reads_tables(model) else "other",
        kind="released-weights" if released else "private-prediction",
        title=f"Classifier of {escape_markdown(model.dataset)}",
        about=about.format(version=__version__),
        use=use,
        facts="\n".join(f"- {fact}" for fact in _facts(model)),
        statement=re.sub(r"^#", "##", statement, flags=re.MULTILINE),
    )


def _reads_tables(model: CertifiedModel | ReleasedHead) -> bool:
    return model.preprocessing is not None and bool(model.preprocessing.columns)


def _facts(model: CertifiedModel | ReleasedHead) -> list[str]:
    names = ", ".join(model.class_names(range(model.classes)))
    relation = model.neighbours
    facts = [
        f"classes: {escape_markdown(names)}",
        f"unit of privacy: one {relation.unit}, under `{relation.value}` ({relation.move})",
    ]
    rules = model.preprocessing
    if rules is not None and rules.columns:
        columns = ", ".join(column.name for column in rules.columns)
        facts.append(f"columns: {escape_markdown(columns)}")
    return facts
