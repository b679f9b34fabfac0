"""LinearRecipe: how a linear head is trained, in public numbers that are fixed beforehand."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from ..accounting import Budget
from ..accounting.renyi import first_row, following_row, least_scale_for_budget
from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput, warn
from ..mechanisms import BudgetedResponse
from ..relations import Neighbours

MOST_CLASSES_IN_PAIRS = 30
"""The number of classes above which there is one head per class, not per pair."""

# The constants of `for_budget`, found on synthetic and public tables.
_FLIPS = 0.01  # how often noise may make an answer wrong at the distance that is aimed at
_HOPELESS = 5.0  # records per unit of distance below which hardly any label is stable enough
_LEAST_NEED = 0.01  # stands for a distance of 0: the label need not be stable at all
_AMPLE = 6400.0  # records per unit of distance from which on the largest clip is best
_LEAST_CLIP, _MOST_CLIP = 0.15, 0.6
_USUAL = 1500.0  # records per unit of distance at which a score of 1 is to be stable
_LEAST_LEAD, _MOST_LEAD, _LEAD_OF_PAIRS = 0.5, 3.5, 1.5  # scores that are to be stable
_MOST_TRAVEL, _TRAVEL_PER_FEATURE = 6000.0, 10.0
_FARTHEST_NEED = 3000

# The constants of `for_release`, found on public tables, reviews and scans.
_UNIT_SLACK = 1000.0  # records per unit of noise at which the next two hold
_RELEASE_CLIP, _LEAST_RELEASE_CLIP = 0.2, 0.2
_RELEASE_TRAVEL, _MOST_RELEASE_TRAVEL = 3000.0, 3000.0
_FEW_FEATURES = 30  # with more of them, noise in all weights hurts earlier
_HOPELESS_RELEASE = 100.0  # records per unit of noise below which a release is hardly of use

# Within these ranges nothing underflows, which the bound on rounding relies on.
_RANGES = {
    "travel": (1e-6, 1e9),
    "clip": (1e-6, 1e3),
    "radius": (1e-3, 1e3),
    "growth": (1.0, 1e6),
    "weight_decay": (0.0, 1e6),
    "scale": (1e-30, 1e30),
}


@dataclass(frozen=True, kw_only=True)
class LinearRecipe:
    """How to train a linear head: public numbers that are fixed beforehand.

    Small steps cost time and no distance, so the number of steps is not chosen: it is the smallest
    one whose steps satisfy the condition under which a step never drives two heads apart.

    Args:
        batch_size: The normaliser: about how many records a batch has, a public number. Any number
            of records is sound; a guess within a factor of 2 is accurate. None is allowed only
            under "replace", where the number of records is public.
        travel: The sum of the step sizes. More travel fits better; distances fall in proportion.
        clip: The bound on the norm of each record's gradient, at most `radius`.
        radius: Features are scaled to a norm of about 1 and clipped to this norm.
        growth: The limit of the smooth normaliser: a batch never counts for more than `growth`
            times batch_size records, however many it has.
        weight_decay: The weight decay.
        batches: The number of batches; 1 is the full batch.
        seed: The key of the hash that assigns records to batches and members.
        scale: The number by which features are multiplied. None: one divided by the root mean
            square norm of the features, as far as the public rules tell it.

    Raises:
        InvalidInput: If a number is out of range; the message names it.

    Example:
        >>> import holdfast as hf
        >>> recipe = hf.LinearRecipe(batch_size=25_000, travel=1000.0, clip=0.6)
        >>> recipe.radius
        1.2
    """

    batch_size: int | None = None
    travel: float = 100.0
    clip: float = 0.6
    radius: float = 1.2
    growth: float = 8.0
    weight_decay: float = 0.0
    batches: int = 1
    seed: int = 0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            self._set("batch_size", check_integer("batch_size", self.batch_size, 1))
        self._set("batches", check_integer("batches", self.batches, 1))
        self._set("seed", check_integer("seed", self.seed, 0))
        for name, (least, most) in _RANGES.items():
            if name != "scale" or self.scale is not None:
                self._set(name, _number(name, getattr(self, name), least, most))
        if self.clip > self.radius:
            raise InvalidInput(
                f"clip={self.clip!r}: expected at most radius={self.radius!r}, "
                "since no gradient is longer than that"
            )

    @classmethod
    def for_budget(
        cls,
        *,
        records: int,
        features: int,
        classes: int,
        budget: Budget,
        queries: int,
        neighbours: Neighbours | str = Neighbours.ADD_REMOVE,
        seed: int = 0,
    ) -> LinearRecipe:
        """Choose a recipe from public numbers alone.

        The budget and the number of queries tell how stable a label must be for its answer to be
        rarely wrong. Travel and clip are chosen such that a score of about 1 is that stable;
        docs/theory/linear-heads.md tells how the rule was found.

        Args:
            records: About how many records there are (per member, in an ensemble): a public number.
            features: The number of features.
            classes: The number of classes.
            budget: The total budget.
            queries: The number of queries that it has to last for.
            neighbours: The neighbour relation: under "replace" a move counts for two records.
            seed: As in the recipe.

        Warns:
            HoldfastWarning: If there are too few records for so many answers under the budget.

        Raises:
            InvalidInput: If a number is out of range.

        Example:
            >>> import holdfast as hf
            >>> budget = hf.Budget(1.0, 1e-6)
            >>> recipe = hf.LinearRecipe.for_budget(
            ...     records=25_000, features=384, classes=2, budget=budget, queries=100
            ... )
            >>> recipe.batch_size
            25000
        """
        size = check_integer("records", records, 1)
        width = check_integer("features", features, 1)
        count = check_integer("classes", classes, 2)
        if not isinstance(budget, Budget):
            raise InvalidInput(
                f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)"
            )
        need = needed_distance(budget, check_integer("queries", queries, 1), count)
        # A pair's head sees the records of two classes; the head of one class moves twice as far.
        share = size * 2.0 / count if count <= MOST_CLASSES_IN_PAIRS else size / 2.0
        relation = Neighbours.of(neighbours)
        share /= 2.0 if relation.exchanges else 1.0
        slack = share / max(need, _LEAST_NEED)  # records per unit of the distance that is needed
        if slack < _HOPELESS:
            warn(
                f"{queries:,} answers under {budget} need labels that are stable at distance "
                f"{need:,}, which {size:,} {relation.unit}s and {count} classes can hardly give: "
                "answers will be mostly noise; plan for fewer queries, grant a larger budget, or "
                f"collect more: {relation.unit}s that would do: about "
                f"{_records_needed(size, slack, _HOPELESS)}"
            )
        clip = min(_MOST_CLIP, max(_LEAST_CLIP, _MOST_CLIP * math.sqrt(slack / _AMPLE)))
        lead = _LEAD_OF_PAIRS
        if count == 2:
            lead = min(_MOST_LEAD, max(_LEAST_LEAD, (_USUAL / slack) ** 0.4))
        travel = min(lead * slack / clip, _MOST_TRAVEL + _TRAVEL_PER_FEATURE * width)
        return cls(
            batch_size=size,
            travel=float(f"{max(1.0, travel):.3g}"),
            clip=float(f"{clip:.2g}"),
            seed=seed,
        )

    @classmethod
    def for_release(
        cls,
        *,
        records: int,
        features: int,
        classes: int,
        budget: Budget,
        neighbours: Neighbours | str = Neighbours.ADD_REMOVE,
        seed: int = 0,
    ) -> LinearRecipe:
        """Choose a recipe for a head that will be released, from public numbers alone.

        The noise of a release grows with travel and clip, but not with the number of queries;
        docs/theory/release.md tells how the rule was found.

        Args:
            records: About how many records there are: a public number.
            features: The number of features.
            classes: The number of classes.
            budget: The budget of the release, with a delta above 0.
            neighbours: The neighbour relation: under "replace" a move counts for two records.
            seed: As in the recipe.

        Warns:
            HoldfastWarning: If there are too few records for a release under the budget.

        Raises:
            InvalidInput: If a number is out of range.

        Example:
            >>> import holdfast as hf
            >>> budget = hf.Budget(1.0, 1e-6)
            >>> recipe = hf.LinearRecipe.for_release(
            ...     records=25_000, features=384, classes=2, budget=budget
            ... )
            >>> recipe.travel
            3000.0
        """
        size = check_integer("records", records, 1)
        count = check_integer("classes", classes, 2)
        if not isinstance(budget, Budget):
            raise InvalidInput(
                f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)"
            )
        width = check_integer("features", features, 1)
        slack = size / noise_per_sensitivity(budget)  # records per unit of noise
        slack /= 1.0 if count == 2 else math.sqrt(2.0)  # the heads of two classes move
        slack /= 2.0 if Neighbours.of(neighbours).exchanges else 1.0
        if slack < _HOPELESS_RELEASE:
            warn(
                f"a release under {budget} adds as much noise as {size / slack:.3g} records move "
                f"the head, which is much for {size:,} records: it will be mostly noise; grant a "
                "larger budget, ask few queries one by one, or collect more: about "
                f"{_records_needed(size, slack, _HOPELESS_RELEASE)} would do"
            )
        share = slack / _UNIT_SLACK
        clip = min(_MOST_CLIP, max(_LEAST_RELEASE_CLIP, _RELEASE_CLIP * math.sqrt(share)))
        share *= (_FEW_FEATURES / max(_FEW_FEATURES, width)) ** 0.25
        travel = min(_MOST_RELEASE_TRAVEL, max(1.0, _RELEASE_TRAVEL * share**0.75))
        return cls(
            batch_size=size, travel=float(f"{travel:.3g}"), clip=float(f"{clip:.2g}"), seed=seed
        )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return all settings as a dictionary."""
        return asdict(self)


def _number(name: str, value: Any, least: float, most: float) -> float:
    number = as_float_or_nan(value)
    if not least <= number <= most:
        raise InvalidInput(f"{name}={value!r}: expected a number from {least:g} to {most:g}")
    return number


def _records_needed(size: int, slack: float, wanted: float) -> str:
    """Return how many records give the slack that is wanted, to two digits."""
    count = size * wanted / slack
    digits = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return f"{math.ceil(count / digits) * digits:,}"


@lru_cache(maxsize=512)
def noise_per_sensitivity(budget: Budget) -> float:
    """Return the noise of a release that takes a whole budget, in units of its sensitivity."""
    unit = 1 << 64
    return least_scale_for_budget(unit, budget, 1) / unit


@lru_cache(maxsize=512)
def needed_distance(budget: Budget, queries: int, classes: int) -> int:
    """Return about how stable a label must be for noise to change its answer in 1% of cases.

    It is at most 3,000: a label that must be more stable than that hardly exists.
    """
    if budget.delta == 0.0:
        each = budget.epsilon / queries
        first = math.log(classes - 1.0) - each
        return min(_FARTHEST_NEED, max(0, math.ceil((first - math.log(_FLIPS)) / each)))
    mechanism = BudgetedResponse(budget, queries)
    assert mechanism.order is not None
    order, cost = Decimal(mechanism.order), Decimal(mechanism.cost)
    row, distance = first_row(order, cost, classes), 0
    while row > math.log(_FLIPS) and distance < _FARTHEST_NEED:
        row, distance = following_row(order, cost, row), distance + 1
    return distance
