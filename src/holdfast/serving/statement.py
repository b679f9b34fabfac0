"""The privacy statement of a model's answers: what is promised, to whom, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ..checks import canonical_name, escape_markdown
from ..errors import InvalidInput
from ..heads.ball import FARTHEST
from ..ledger import BudgetStatus
from ..models import CertifiedModel
from ..models.released import ABOUT_PERSONS
from ..preprocessing.rules import preprocessing_facts
from ..version import __version__

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
