"""Simulation: the expected accuracy of private answers, for every mechanism, before asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..accounting import Budget
from ..arrays import check_labels
from ..certificates import Certificate, paper_distance, warn_if_useless
from ..checks import check_integer
from ..errors import InvalidInput
from ..models import CertifiedModel
from ..relations import Neighbours
from ..workers import progress_bar
from .outcomes import Outcome, Outcomes, largest_queries, mechanisms_to_compare

QUERIES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
MEASURES = {
    "accuracy": "expected accuracy",
    "balanced_accuracy": "expected balanced accuracy",
    "truth": "share of answers that noise leaves unchanged",
}
_MARKERS = "osD^vPX"


@dataclass(frozen=True, eq=False)
class Simulation:
    """Expected outcomes per mechanism and setting. NOT private: computed from certificates.

    Attributes:
        budgets: The total budget of each setting.
        queries: The number of queries of each setting.
        plain: The outcome of the model's own labels, without noise.
        mechanisms: The outcome of each mechanism in every setting, by name.
        certificate: The certificate of the queries.
    """

    budgets: tuple[Budget, ...]
    queries: tuple[int, ...]
    plain: Outcome
    mechanisms: Mapping[str, tuple[Outcome, ...]]
    certificate: Certificate
    _expected: Mapping[str, Outcomes] = field(repr=False)
    _labels: Tensor = field(repr=False)

    @property
    def varies(self) -> str:
        """What differs between the settings: "number of queries" or "total epsilon"."""
        return "total epsilon" if len(set(self.budgets)) > 1 else "number of queries"

    @property
    def settings(self) -> tuple[float, ...]:
        """The number that varies, per setting."""
        if self.varies == "total epsilon":
            return tuple(budget.epsilon for budget in self.budgets)
        return self.queries

    @property
    def commonest(self) -> float:
        """The accuracy of always answering the commonest label."""
        return float(torch.bincount(self._labels).max()) / len(self._labels)

    def largest_queries(self, accuracy: float, *, budget: Budget | None = None) -> dict[str, int]:
        """Return the largest number of queries with an expected `accuracy`, per mechanism.

        Args:
            accuracy: The accuracy.
            budget: The total budget; that of the first setting if None.
        """
        total = self.budgets[0] if budget is None else budget
        return {
            name: largest_queries(expected, self.certificate, self._labels, total, accuracy)
            for name, expected in self._expected.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers, ready for JSON."""
        curves = {name: [asdict(each) for each in found] for name, found in self.mechanisms.items()}
        return {
            self.varies: self.settings,
            "plain": asdict(self.plain),
            "commonest": self.commonest,
            "mechanisms": curves,
        }

    def plot(self, path: str | PathLike[str], *, title: str = "") -> None:
        """Draw one panel per measure, with one line per mechanism.

        Args:
            path: The file to write: .png, .pdf or .svg.
            title: The title of the figure.
        """
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(15, 5), layout="constrained")
        for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
            self._panel(axis, measure)
            axis.set(xlabel=self.varies, ylabel=label, xscale="log")
            axis.grid(alpha=0.3)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(f"{title}\nnot private: for the owner".lstrip(), fontsize=11)
        figure.savefig(Path(path), dpi=130)
        pyplot.close(figure)

    def _panel(self, axis: Any, measure: str) -> None:
        for number, (name, outcomes) in enumerate(self.mechanisms.items()):
            axis.plot(
                self.settings,
                [getattr(outcome, measure) for outcome in outcomes],
                "--" if "paper" in name else "-",
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=4,
                label=name,
                color=f"C{number}",
            )
        label = "without noise (not private)"
        axis.axhline(getattr(self.plain, measure), color="black", lw=1, linestyle=":", label=label)
        if measure == "accuracy":
            label = "commonest label, always"
            axis.axhline(self.commonest, color="grey", lw=1, linestyle="-.", label=label)
        axis.set_ylim(0.0, 1.02)  # the axis starts at 0, so that differences are not exaggerated


def simulate(
    model: CertifiedModel,
    queries: Any,
    labels: Any,
    *,
    budget: Budget | Sequence[Budget],
    queries_planned: int | Sequence[int] = QUERIES,
    progress: bool = False,
) -> Simulation:
    """Compute the expected accuracy of private answers, for every mechanism. NOT private.

    Accuracies are computed in closed form from the mechanisms' tables; no noise is drawn and
    nothing is charged.

    Args:
        model: What `train`, `train_ensemble` or `load` returned.
        queries: Queries like those that will be asked, one per row.
        labels: Their right answers, as class numbers.
        budget: The total budget; several budgets show what a larger one would buy.
        queries_planned: The number of queries that the budget has to last for; several numbers show
            how accuracy falls. Either this or the budget may be a sequence, not both.
        progress: Whether to show a progress bar.

    Returns:
        The outcomes, with `plot`, `as_dict` and `largest_queries`.

    Raises:
        InvalidInput: If the model was trained under 'remove', from which no private answer can be
            given; or if both the budget and the number of queries vary, or the budgets' deltas.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
        >>> recipe = hf.Recipe(batch_size=100)
        >>> model = torch.nn.Linear(1, 2)
        >>> certified = hf.train(model, x, y, recipe, max_distance=2, progress=False)
        >>> budget = hf.Budget(1.0, 1e-6)
        >>> found = hf.simulate(certified, x, y, budget=budget, queries_planned=[1, 10])
        >>> sorted(found.mechanisms)[0]
        'BudgetedResponse'
    """
    if not isinstance(model, CertifiedModel):
        raise InvalidInput(
            f"model is a {type(model).__name__}: "
            "expected what hf.train, hf.train_ensemble or hf.load returned"
        )
    if model.neighbours is Neighbours.REMOVE:
        raise InvalidInput(
            "the model was trained under 'remove' (unlearning), from which no private answer can "
            "be given; train under 'add_remove'"
        )
    settings = _settings(budget, queries_planned)
    members = model.certify_members(queries, progress=progress)
    certificate = model.combine(members)
    if not len(certificate):
        raise InvalidInput("queries is empty: an expected accuracy needs at least one query")
    right = check_labels(labels, len(certificate), model.classes)
    voting = certificate.votes is not None and certificate.classes == 2
    paper = paper_distance(members) if voting else None
    expected = mechanisms_to_compare(certificate, settings[0][0].delta, paper)
    found: dict[str, tuple[Outcome, ...]] = {}
    with progress_bar("simulating", len(expected), progress) as on_progress:
        for name, outcome in expected.items():
            found[name] = tuple(outcome(certificate, right, *setting) for setting in settings)
            if on_progress is not None:
                on_progress(1)
    kept = torch.ones(len(right), dtype=torch.float64)
    plain = Outcome.of((certificate.labels == right).double(), kept, right)
    names = model.class_names(range(model.classes))
    warn_if_useless(certificate.labels, right, names, model.is_network)
    used, asked = zip(*settings, strict=True)
    return Simulation(used, asked, plain, found, certificate, expected, right)


def _settings(
    budget: Budget | Sequence[Budget], queries_planned: int | Sequence[int]
) -> list[tuple[Budget, int]]:
    """Return the pairs of a budget and a number of queries, or raise InvalidInput."""
    budgets: list[Any] = list(budget) if isinstance(budget, list | tuple) else [budget]
    if not budgets or not all(isinstance(each, Budget) for each in budgets):
        raise InvalidInput(f"budget={budget!r}: expected hf.Budget(epsilon, delta), or several")
    if len({each.delta for each in budgets}) > 1:
        raise InvalidInput(f"budget={budget!r}: expected budgets with the same delta")
    planned = queries_planned if isinstance(queries_planned, Sequence) else [queries_planned]
    counts = [check_integer("queries_planned", count, 1) for count in planned]
    if not counts:
        raise InvalidInput("queries_planned is empty: expected a number of queries, or several")
    if len(budgets) > 1 and len(counts) > 1:
        raise InvalidInput("budget and queries_planned: expected one of them to be a single value")
    return [(each, count) for each in budgets for count in counts]
