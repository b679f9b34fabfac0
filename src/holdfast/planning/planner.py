"""The planner: which way to publish predictions is best for a budget and a number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..accounting import Budget
from ..checks import check_integer
from ..errors import InvalidInput
from ..heads.multiclass import Integers
from ..preprocessing import Preprocessing
from ..progress import ProgressCallback, progress_bar
from ..records import check_features, check_labels
from ..relations import Neighbours
from .approximation import approximate_distance
from .map import draw_map
from .rehearsal import MADE_UP_ACCURACY, Rehearsal, rehearse_on, rehearse_on_made_up
from .ways import WAYS, DpSgd, PublicLabels, Way

CLOSE = 0.005
"""A rival that is expected to be better by less than this is not recommended."""

_EQUAL = 0.002  # of two ways that differ by less, the simpler is recommended

_USELESS = 0.05  # an accuracy that exceeds guessing by less is of no use
_LEAST_LABELLED = 60
PUBLIC, GUESS, PRIVATE = (
    "public records",
    "public numbers alone: a rough guess, on made-up records that a model can tell apart in "
    f"{MADE_UP_ACCURACY:.0%} of cases",
    "private records: keep the plan and the choice secret",
)


@dataclass(frozen=True)
class PlanCell:
    """What to expect of one way, for one budget and number of queries.

    `accuracy` is None if the way cannot be taken; `how` says whether noise was averaged over in
    closed form or the way was run.
    """

    epsilon: float
    delta: float
    queries: int
    way: str
    ours: bool
    how: str
    accuracy: float | None


@dataclass(frozen=True)
class Plan:
    """A comparison of the ways to publish predictions, as `hf.plan` returns it.

    Args:
        cells: What to expect of every way, per budget and number of queries.
        basis: What the expectations are based on.
        distances: About how stable a label must be for its answer to be wrong because of noise in
            1% of cases, per budget and number of queries.
        skipped: Why a way was left out, by its name.
        classes: The number of classes.
    """

    cells: tuple[PlanCell, ...]
    basis: str
    distances: tuple[dict[str, Any], ...]
    skipped: dict[str, str]
    classes: int = 2

    @property
    def settings(self) -> list[tuple[Budget, int]]:
        """The budgets and numbers of queries that were compared."""
        pairs = dict.fromkeys((cell.epsilon, cell.delta, cell.queries) for cell in self.cells)
        return [(Budget(epsilon, delta), queries) for epsilon, delta, queries in pairs]

    def at(self, budget: Budget, queries: int) -> list[PlanCell]:
        """Return the ways that can be taken, the best first.

        Args:
            budget: One of the budgets.
            queries: One of the numbers of queries.
        """
        wanted = (budget.epsilon, budget.delta, queries)
        here = [
            cell
            for cell in self.cells
            if (cell.epsilon, cell.delta, cell.queries) == wanted and cell.accuracy is not None
        ]
        return sorted(here, key=lambda cell: -(cell.accuracy or 0.0))

    def best(self, budget: Budget, queries: int) -> PlanCell:
        """Return the way to take: the best of all, unless a simpler one is as good.

        Public labels alone are preferred to all others, since they need no budget; ways of holdfast
        are preferred to rivals.

        Args:
            budget: One of the budgets.
            queries: One of the numbers of queries.

        Raises:
            InvalidInput: If this budget and number of queries were not compared.
        """
        here = self.at(budget, queries)
        if not here:
            raise InvalidInput(f"{budget}, {queries} queries: not in the plan")
        public = next((cell for cell in here if cell.way == PublicLabels.name), None)
        if public is not None and _within(public, here[0], CLOSE):
            return public
        ours = next((cell for cell in here if cell.ours), None)
        if ours is None or not _within(ours, here[0], CLOSE):
            return here[0]
        equal = {cell.way: cell for cell in here if cell.ours and _within(cell, ours, _EQUAL)}
        return next(equal[way.name] for way in WAYS if way.name in equal)

    def recommendation(self, budget: Budget, queries: int) -> str:
        """Return what to do, in plain words.

        Args:
            budget: One of the budgets.
            queries: One of the numbers of queries.
        """
        chosen = self.best(budget, queries)
        text = f"{queries:,} queries under {budget}: {chosen.way}, expected accuracy "
        text += f"{chosen.accuracy:.3f}"
        others = [cell for cell in self.at(budget, queries) if cell.way != chosen.way]
        if others:
            text += f"; next best: {others[0].way}, {others[0].accuracy:.3f}"
        if (chosen.accuracy or 0.0) < 1.0 / self.classes + _USELESS:
            return (
                f"{text}.\nThis is hardly better than guessing: grant a larger budget, plan for "
                "fewer queries, or collect more records."
            )
        command = next(way.command for way in WAYS if way.name == chosen.way)
        if command:
            return f"{text}.\n{command.format(e=budget.epsilon, d=budget.delta, q=queries)}"
        if chosen.way == PublicLabels.name:
            return (
                f"{text}.\nThe private records add nothing that is worth a budget here: "
                "train on the public ones."
            )
        return f"{text}.\nThis is outside holdfast: use a library for it, such as Opacus."

    def plot(self, path: str | PathLike[str], *, title: str = "") -> None:
        """Draw which way wins where, over epsilon and the number of queries.

        Args:
            path: The file to write, a .png, .pdf or .svg.
            title: A line above the figure.
        """
        wins = {
            (budget.epsilon, queries): self.best(budget, queries)
            for budget, queries in self.settings
        }
        draw_map({"": wins}, path, title=f"{title}\nbased on {self.basis}".lstrip())

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        best = [asdict(self.best(budget, queries)) for budget, queries in self.settings]
        return {
            "basis": self.basis,
            "cells": [asdict(cell) for cell in self.cells],
            "best": best,
            "distances": list(self.distances),
            "skipped": self.skipped,
        }


def plan(
    budget: Budget | Sequence[Budget],
    queries: int | Sequence[int],
    *,
    records: int,
    features: int | None = None,
    classes: int = 2,
    public: tuple[Any, Any] | None = None,
    private: tuple[Any, Any] | None = None,
    keep_secret: bool = False,
    neighbours: Neighbours | str = "add_remove",
    preprocessing: Preprocessing | None = None,
    encoder: Any = None,
    offset: Any = None,
    ways: Sequence[str] | None = None,
    progress: bool = True,
) -> Plan:
    """Compare the ways to publish predictions, before anyone spends a budget.

    Every way is rehearsed on labelled records, scaled to the number of private ones: answers one by
    one from heads, boxes and ensembles, a sparse vector, the release of the head, and rivals:
    DP-SGD (if Opacus is installed), noisy descent, and public labels alone.

    Args:
        budget: The total budget, or several.
        queries: The number of queries that it has to last for, or several.
        records: About how many private records there are: a public number.
        features: The number of features, if no records are given.
        classes: The number of classes.
        public: Public records with labels (x, y) like the private ones. Without them, the plan is a
            rough guess from public numbers alone.
        private: The private records (x, y), in place of public ones.
        keep_secret: Whether neither the plan nor the choice that follows from it will be published;
            required with `private`.
        neighbours: The neighbour relation.
        preprocessing: As for `train_linear`.
        encoder: As for `train_linear`.
        offset: As for `train_linear`.
        ways: The names of the ways to compare; all by default.
        progress: Whether to show a progress bar.

    Returns:
        The comparison, with `best`, `recommendation`, `plot` and `as_dict`.

    Raises:
        InvalidInput: If an argument is out of range, or private records are given without
            `keep_secret`.

    Example:
        >>> import holdfast as hf
        >>> found = hf.plan(hf.Budget(1.0, 1e-6), 100_000, records=20_000, features=5,
        ...     ways=["answers from a head", "release of the head"], progress=False)
        >>> found.best(hf.Budget(1.0, 1e-6), 100_000).way
        'release of the head'
    """
    settings = _settings(budget, queries)
    size = check_integer("records", records, 1)
    count = check_integer("classes", classes, 2)
    relation = Neighbours.of(neighbours)
    if relation is Neighbours.REMOVE:
        raise InvalidInput("neighbours='remove' allows no private answer; use 'add_remove'")
    chosen, skipped = _ways(ways)
    basis = _basis(public, private, keep_secret)
    given = public if private is None else private
    if given is None:
        if features is None:
            raise InvalidInput(
                "features is missing: without records, say how many features they have"
            )
        width = check_integer("features", features, 1)
        rehearsals = [rehearse_on_made_up(size, width, count, relation.value)]
    else:
        x, y, scale = _labelled(given, count, preprocessing)
        modules = (("encoder", encoder), ("offset", offset))
        options = {name: module for name, module in modules if module is not None}
        rehearsals = list(rehearse_on(x, y, size, count, relation.value, options, scale))
    if basis is not PUBLIC:
        chosen = [way for way in chosen if not isinstance(way, PublicLabels)]
    with progress_bar("planning", len(chosen) * len(settings), progress) as watch:
        cells = tuple(
            _cell(way, rehearsals, each, asked, watch) for each, asked in settings for way in chosen
        )
    needed = tuple(
        {
            "epsilon": each.epsilon,
            "delta": each.delta,
            "queries": asked,
            "distance": approximate_distance(each, asked, count),
        }
        for each, asked in settings
    )
    return Plan(cells, basis, needed, skipped, count)


def _within(cell: PlanCell, other: PlanCell, by: float) -> bool:
    return (cell.accuracy or 0.0) >= (other.accuracy or 0.0) - by


def _cell(
    way: Way,
    rehearsals: Sequence[Rehearsal],
    budget: Budget,
    queries: int,
    watch: ProgressCallback | None,
) -> PlanCell:
    found = [each.accuracy(way, budget, queries) for each in rehearsals]
    if watch is not None:
        watch(1)
    known = [each for each in found if each is not None]
    mean = sum(known) / len(known) if len(known) == len(found) else None
    return PlanCell(budget.epsilon, budget.delta, queries, way.name, way.ours, way.how, mean)


def _settings(
    budget: Budget | Sequence[Budget], queries: int | Sequence[int]
) -> list[tuple[Budget, int]]:
    budgets = [budget] if isinstance(budget, Budget) else budget
    counts = queries if isinstance(queries, list | tuple | range) else [queries]
    if not isinstance(budgets, list | tuple) or not budgets or not counts:
        raise InvalidInput(f"budget={budget!r}: expected hf.Budget(epsilon, delta), or several")
    if not all(isinstance(each, Budget) for each in budgets):
        raise InvalidInput(f"budget={budget!r}: expected hf.Budget(epsilon, delta), or several")
    asked = [check_integer("queries", count, 1) for count in counts]
    return [(each, count) for each in budgets for count in asked]


def _ways(names: Sequence[str] | None) -> tuple[list[Way], dict[str, str]]:
    """Return the ways to compare, and why others are left out."""
    known = [way.name for way in WAYS]
    unknown = next((name for name in names or () if name not in known), None)
    if unknown is not None:
        raise InvalidInput(f"ways: {unknown!r} is not one of {', '.join(map(repr, known))}")
    skipped = {}
    chosen = [way() for way in WAYS if names is None or way.name in names]
    if any(isinstance(way, DpSgd) for way in chosen) and not _has_opacus():
        skipped[DpSgd.name] = "Opacus is not installed: pip install 'holdfast[dpsgd]'"
        chosen = [way for way in chosen if not isinstance(way, DpSgd)]
    return chosen, skipped


def _has_opacus() -> bool:
    from importlib.util import find_spec

    return find_spec("opacus") is not None


def _basis(
    public: tuple[Any, Any] | None, private: tuple[Any, Any] | None, keep_secret: bool
) -> str:
    """Return what the plan is based on."""
    if public is not None and private is not None:
        raise InvalidInput("public and private: expected one of them")
    if private is not None and not keep_secret:
        raise InvalidInput(
            "private: a plan that is made on the private records depends on them, and so does the "
            "choice that follows from it. Rehearse on public records (public=), or pass "
            "keep_secret=True (--keep-secret) if neither the plan nor the choice will be published"
        )
    if private is not None:
        return PRIVATE
    return GUESS if public is None else PUBLIC


def _labelled(
    given: tuple[Any, Any], classes: int, rules: Preprocessing | None
) -> tuple[Tensor, Integers, float | None]:
    """Return features and labels to rehearse on, and the public scale of the features."""
    x, y = given
    if len(y) < _LEAST_LABELLED:
        raise InvalidInput(
            f"{len(y)} labelled records are too few to rehearse on: expected {_LEAST_LABELLED} or "
            "more; leave them out for a rough guess from public numbers alone"
        )
    norm = None
    if rules is not None:
        x, norm = rules.apply(x), rules.typical_norm
    features = check_features(x, torch.float64, "x")
    labels = check_labels(y, len(features), classes).numpy()
    return features, labels, None if norm is None else 1.0 / norm
