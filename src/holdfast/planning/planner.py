"""The planner: which way to publish predictions is best for a budget and a number of queries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..accounting import Budget
from ..arrays import Integers, check_features, check_labels
from ..checks import check_integer
from ..errors import HoldfastWarning, InvalidInput
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .approximation import approximate_distance
from .comparison import GUESS, PRIVATE, PUBLIC, Plan, PlanCell
from .rehearsal import Rehearsal, rehearse_on, rehearse_on_made_up
from .ways import WAYS, DpSgd, PublicLabels, Way

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
            raise InvalidInput(
                "features is missing: without records, say how many features they have"
            )
        width = check_integer("features", features, 1)
        rehearsals = [rehearse_on_made_up(size, width, count, relation.value)]
        commonest = None
    else:
        x, y, scale = _labelled(given, count, preprocessing)
        modules = (("encoder", encoder), ("offset", offset))
        options = {name: module for name, module in modules if module is not None}
        rehearsals = list(rehearse_on(x, y, size, count, relation.value, options, scale))
        commonest = float(np.bincount(y).max()) / len(y)
    if basis is not PUBLIC:
        chosen = [way for way in chosen if not isinstance(way, PublicLabels)]
    with (
        progress_bar("planning", len(chosen) * len(settings), progress) as watch,
        warnings.catch_warnings(),
    ):
        # A rehearsal's warnings are about small samples; the plan itself says what is useless.
        warnings.simplefilter("ignore", HoldfastWarning)
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
    return Plan(cells, basis, needed, skipped, count, commonest)


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
