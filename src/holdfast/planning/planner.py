"""Plan how to publish predictions: trials, the comparison of ways, and the map of winners.

A model of fewer records is less accurate. Some ways lose more by that than others, since they fit
closer. So every way is tried with all records of a rehearsal and with half of them, and the
difference is carried on to the number of private records. A linear model with d features can
separate up to about 2 d records whatever their labels are, so the error is taken to be a constant
plus another one divided by the number of records beyond 2 d.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..accounting import Budget
from ..arrays import Integers, check_features, check_labels
from ..certificates import NO_BETTER
from ..checks import check_integer
from ..errors import HoldfastWarning, InvalidInput
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .outcomes import approximate_distance
from .trials import Stage
from .ways import WAYS, DpSgd, PublicLabels, Way

FOLDS = 3
_MADE_UP_RECORDS, _MADE_UP_QUERIES, _MADE_UP_FEATURES = 20_000, 2000, 200
MADE_UP_ACCURACY = 0.85
_NARROWEST = 0.3


@dataclass(frozen=True)
class Trial:
    """A stage, and the same with each half of its records; no halves if it is of full size."""

    stage: Stage
    halves: tuple[Stage, ...] = ()

    def accuracy(self, way: Way, budget: Budget, queries: int) -> float | None:
        """Return the accuracy to expect of a way with all private records; None if it has none."""
        stages = (self.stage, *self.halves)
        found = {id(stage): way.accuracy(stage, budget, queries) for stage in stages}
        if None in found.values():
            return None
        here = found[id(self.stage)] or 0.0
        final = self.extrapolated(
            lambda stage: found[id(stage)] or 0.0, way.final_records(self.stage)
        )
        return min(final, max(here, self._ceiling()))

    def _ceiling(self) -> float:
        """Return the upper limit of extrapolated accuracies: a regression without noise.

        A way that fails with half of the records gains so much with the other half that carrying it
        on would promise more than the records hold.
        """
        if not self.halves or self.stage.public is None:
            return 1.0
        without_noise = PublicLabels()
        nothing = Budget(1.0)  # it spends none
        return self.extrapolated(lambda stage: without_noise.accuracy(stage, nothing, 1) or 0.0)

    def extrapolated(
        self, accuracy: Callable[[Stage], float], final_records: int | None = None
    ) -> float:
        """Return the accuracy with `final_records`, given that with all and with half the records.

        By default they are the private records.
        """
        found = accuracy(self.stage)
        if not self.halves:
            return found
        half = [accuracy(stage) for stage in self.halves]
        # The error with n records is a + c / (n - spare).
        count = len(self.stage.y)
        spare = min(2 * self.stage.features, count // 4)
        final = max(count, final_records or self.stage.records)
        gained = max(0.0, found - sum(half) / len(half))
        fall = 1.0 / (count / 2 - spare) - 1.0 / (count - spare)
        more = (1.0 / (count - spare) - 1.0 / (final - spare)) / fall
        return min(1.0, found + more * gained)


def rehearse_on(
    x: Tensor,
    y: Integers,
    records: int,
    classes: int,
    neighbours: str,
    options: dict[str, Any],
    scale: float | None,
) -> Iterator[Trial]:
    """Yield a rehearsal per fold of labelled records: one fold asks, the others are trained on."""
    place = np.random.default_rng(0).permutation(len(y)) % FOLDS
    for fold in range(FOLDS):
        asks, learns = np.flatnonzero(place == fold), np.flatnonzero(place != fold)
        public = (x[learns], y[learns])
        stage = Stage(
            *public, x[asks], y[asks], public, records, classes, neighbours, options, scale
        )
        parts = [np.arange(first, len(learns), 2) for first in (0, 1)]
        yield Trial(stage, tuple(stage.with_records(part) for part in parts))


def rehearse_on_made_up(records: int, features: int, classes: int, neighbours: str) -> Trial:
    """Return a rehearsal on made-up records: clouds that a model tells apart in 85% of cases."""
    size = min(records, _MADE_UP_RECORDS)
    x, y = _clouds(size + _MADE_UP_QUERIES, min(features, _MADE_UP_FEATURES), classes)
    stage = Stage(x[:size], y[:size], x[size:], y[size:], None, records, classes, neighbours, {})
    return Trial(stage)


def _clouds(count: int, width: int, classes: int) -> tuple[Tensor, Integers]:
    """Return records and labels: normal clouds whose spread differs between directions."""
    chance = np.random.default_rng(0)
    y = chance.integers(classes, size=count)
    spread = np.geomspace(1.0, _NARROWEST, width)
    middles = chance.normal(size=(classes, width))
    middles -= middles.mean(0)
    middles /= np.linalg.norm(middles / spread, axis=1, keepdims=True)
    noise = chance.normal(size=(count, width)) * spread
    low, high = 0.0, 20.0
    while high - low > 1e-3:  # the distance at which the best rule is right in 85% of cases
        far = (low + high) / 2
        scores = ((far * middles[y] + noise) / spread) @ (middles / spread).T
        right = float((scores.argmax(1) == y).mean())
        low, high = (low, far) if right > MADE_UP_ACCURACY else (far, high)
    x = high * middles[y] + noise
    return torch.from_numpy(x / np.sqrt((x**2).mean())), y


class Winner(Protocol):
    """The way that wins in a cell, and its expected accuracy."""

    @property
    def way(self) -> str: ...
    @property
    def accuracy(self) -> float | None: ...


_COLOURS = {
    "answers from a head": "#8ec1f0",
    "release of the head": "#f2b134",
    "answers from an ensemble": "#7fd1c7",
    "answers from boxes": "#b5d99c",
    "sparse vector": "#c3b1e1",
    "noisy descent": "#e8998d",
    "DP-SGD": "#d9685a",
    "public labels alone": "#cfcfcf",
}


def draw_map(
    panels: Mapping[str, Mapping[tuple[float, int], Winner]],
    path: str | PathLike[str],
    *,
    title: str = "",
) -> None:
    """Draw, per panel, the winner of every (epsilon, queries) as a coloured cell.

    Args:
        panels: The winners by epsilon and number of queries, by the panel's title.
        path: The file to write.
        title: The title of the figure.
    """
    from matplotlib import pyplot

    sizes = [len({queries for _, queries in wins}) for wins in panels.values()]
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(max(6.4, 1.6 + 0.95 * sum(sizes)), 4.4),
        layout="constrained",
        squeeze=False,
    )
    for axis, (name, wins) in zip(axes[0], panels.items(), strict=True):
        draw_panel(axis, name, wins)
    add_legend(figure, {cell.way for wins in panels.values() for cell in wins.values()})
    lines = (textwrap.fill(line, int(11 * figure.get_figwidth())) for line in title.splitlines())
    figure.suptitle("\n".join(lines), fontsize=10)
    figure.savefig(Path(path), dpi=130)
    pyplot.close(figure)


def draw_panel(axis: Any, name: str, wins: Mapping[tuple[float, int], Winner]) -> None:
    """Draw one panel: a coloured cell with its accuracy per epsilon and number of queries."""
    epsilons = sorted({epsilon for epsilon, _ in wins})
    counts = sorted({queries for _, queries in wins})
    for row, epsilon in enumerate(epsilons):
        for column, queries in enumerate(counts):
            cell = wins[epsilon, queries]
            axis.add_patch(_square(column, row, _COLOURS[cell.way]))
            text = f"{cell.accuracy or 0.0:.3f}".removeprefix("0")
            axis.text(column, row, text, ha="center", va="center", fontsize=9)
    axis.set(
        xlim=(-0.5, len(counts) - 0.5),
        ylim=(-0.5, len(epsilons) - 0.5),
        xlabel="queries Q",
        ylabel="total epsilon",
        title=name,
    )
    axis.set_xticks(range(len(counts)), [f"{count:,}" for count in counts], fontsize=8)
    axis.set_yticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])


def _square(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", lw=2)


def add_legend(figure: Any, ways: set[str]) -> None:
    """Add a legend of the ways that win somewhere."""
    from matplotlib.patches import Patch

    handles = [Patch(color=_COLOURS[way.name], label=way.name) for way in WAYS if way.name in ways]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


CLOSE = 0.005
"""A rival that is expected to be better by less than this is not recommended."""

_EQUAL = 0.002  # of two ways that differ by less, the simpler is recommended

PUBLIC, GUESS, PRIVATE = (
    "public records",
    "public numbers alone: a rough guess, on made-up records that a model can tell apart in "
    f"{MADE_UP_ACCURACY:.0%} of cases",
    "private records: keep the plan and the choice secret",
)
_USELESS = 0.05  # an accuracy that exceeds guessing by less is of no use


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
        commonest: The accuracy of always answering the commonest label of the labelled records;
            None if there are none.
    """

    cells: tuple[PlanCell, ...]
    basis: str
    distances: tuple[dict[str, Any], ...]
    skipped: dict[str, str]
    classes: int = 2
    commonest: float | None = None

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
        text = f"{queries:,} queries under {budget}: {chosen.way}, "
        text += "on made-up records " if self.basis == GUESS else "expected accuracy "
        text += f"{chosen.accuracy:.3f}"
        others = [cell for cell in self.at(budget, queries) if cell.way != chosen.way]
        if others:
            text += f"; {others[0].way}: {others[0].accuracy:.3f}"
            if (others[0].accuracy or 0.0) > (chosen.accuracy or 0.0):
                text += " (not worth the difference)"
        if (chosen.accuracy or 0.0) < 1.0 / self.classes + _USELESS:
            return (
                f"{text}.\nThis is hardly better than guessing: grant a larger budget, plan for "
                "fewer queries, or collect more records."
            )
        if self.commonest is not None and (chosen.accuracy or 0.0) < self.commonest + NO_BETTER:
            return (
                f"{text}.\nThis is no better than always answering the commonest label, which is "
                f"right for {self.commonest:.3f}: drop rows of the commoner class by a public rule "
                "first (docs/rare-classes.md), and plan again with rows that were dropped alike."
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
            "commonest": self.commonest,
            "cells": [asdict(cell) for cell in self.cells],
            "best": best,
            "distances": list(self.distances),
            "skipped": self.skipped,
        }


def _within(cell: PlanCell, other: PlanCell, by: float) -> bool:
    return (cell.accuracy or 0.0) >= (other.accuracy or 0.0) - by


_LEAST_LABELLED = 60


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
    if relation.unit == "person":
        raise InvalidInput(
            f"neighbours={relation.value!r}: plans are made per record; for a plan per person, "
            "give the number of persons as records and one public record per person, under "
            f"{relation.value.removesuffix('_person')!r}"
        )
    chosen, skipped = _ways(ways)
    basis = _basis(public, private, keep_secret)
    given = public if private is None else private
    if given is None:
        if features is None:
            raise InvalidInput("features is missing: say how many features the records have")
        width = check_integer("features", features, 1)
        trials = [rehearse_on_made_up(size, width, count, relation.value)]
        commonest = None
    else:
        x, y, scale = _labelled(given, count, preprocessing)
        modules = (("encoder", encoder), ("offset", offset))
        options = {name: module for name, module in modules if module is not None}
        trials = list(rehearse_on(x, y, size, count, relation.value, options, scale))
        commonest = float(np.bincount(y).max()) / len(y)
    if basis is not PUBLIC:
        chosen = [way for way in chosen if not isinstance(way, PublicLabels)]
    with (
        progress_bar("planning", len(chosen) * len(settings), progress) as on_progress,
        warnings.catch_warnings(),
    ):
        # A rehearsal's warnings are about small samples; the plan itself says what is useless.
        warnings.simplefilter("ignore", HoldfastWarning)
        asked_of = [(way, *setting) for setting in settings for way in chosen]
        cells = tuple(_cell(trials, *asked, on_progress) for asked in asked_of)
    needed = tuple(
        {
            "epsilon": each.epsilon,
            "delta": each.delta,
            "queries": asked,
            "distance": approximate_distance(each, asked, count),
        }
        for each, asked in settings
    )
    return Plan(cells, basis, needed, skipped, count, commonest)


def _cell(
    trials: Sequence[Trial],
    way: Way,
    budget: Budget,
    queries: int,
    on_progress: ProgressCallback | None,
) -> PlanCell:
    found = [each.accuracy(way, budget, queries) for each in trials]
    if on_progress is not None:
        on_progress(1)
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
