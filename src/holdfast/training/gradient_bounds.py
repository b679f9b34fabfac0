"""The descent direction: bounds on a batch's summed gradient, over all models in a box and all neighbouring batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from .. import kernels
from ..intervals import Interval
from ..layers import Gradient
from ..relations import Neighbours


def layout(shape: torch.Size) -> tuple[int, int]:
    """How a parameter's gradient is summed: matrices (dense weights) as outputs x inputs, all else as one row."""
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape.numel())


class Tally:
    """Adds up one batch over one box, for all parameters; gives the bounds at any distance k up to `farthest`.

    With s = the sum over the batch's records of the lower ends, in units of clip / UNITS, the lower bound is

        add_remove   s - k * UNITS
        replace      s - (sum of the k largest lower ends) - k * UNITS
        remove       s - (sum of the k largest of max(lower end, 0))

    and the upper bound is the same of the negated upper ends, negated (theory: docs/theory/descent.md). Public
    records are summed and never selected.

    A record whose numbers overflow counts as 0 at distance 0, and as anything from -UNITS to UNITS at all others. So
    it moves a bound by no more than any other record, and nothing is refused on its account.

    Guarantees:
        All sums are of whole numbers and exact, so records may come in any order. Isotonic in every record's interval.
    """

    def __init__(self, parameters: Mapping[str, Tensor], neighbours: Neighbours, farthest: int, records: int) -> None:
        self.neighbours = neighbours
        self.records = records
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.totals: dict[str, Tensor] = {}
        self.largest: dict[str, Any] = {}
        self.overflowed = dict.fromkeys(parameters, 0)  # records, public ones included
        self.selectable = dict.fromkeys(parameters, 0)  # private records that did not overflow
        floor = kernels.LOWEST if neighbours.newcomers else 0
        depart = _departing(neighbours, farthest, records)
        for name, value in parameters.items():
            rows, columns = layout(value.shape)
            self.totals[name] = torch.zeros(2, rows, columns, dtype=torch.float64, device=value.device)
            if depart:
                self.largest[name] = kernels.largest_entries(rows, columns, depart, floor, value.device)

    def add(self, name: str, gradient: Gradient, finite: Bool[Tensor, " records"], private: bool) -> None:
        """Add a block of records, of which those not `finite` have overflowed."""
        count = int(finite.sum())
        if count < len(finite):
            gradient = gradient.rows(finite)
        gradient.add_to(self.totals[name], self.largest.get(name) if private else None)
        self.overflowed[name] += len(finite) - count
        self.selectable[name] += count if private else 0

    def bounds(self, name: str, distance: int) -> Interval:
        """The bounds of the summed gradient at a distance, in units, as float64."""
        worst = self.totals[name]
        if distance:
            newcomers = distance if self.neighbours.newcomers else 0
            worst = worst - (newcomers + self.overflowed[name]) * kernels.UNITS
        if distance and name in self.largest:
            worst = worst - self._departed(name, distance).to(worst.device)
        return Interval(worst[0], -worst[1]).map_entries(lambda end: end.view(self.shapes[name]))

    def _departed(self, name: str, distance: int) -> Tensor:
        """The largest sum that records which left can have contributed; those that overflowed have the smallest entries."""
        count = _departing(self.neighbours, distance, self.records)
        chosen = min(count, self.selectable[name])
        smallest = -kernels.UNITS if self.neighbours.newcomers else 0
        departed: Tensor = self.largest[name].sums(chosen) + (count - chosen) * smallest
        return departed

    def spread(self, name: str) -> float:
        """The mean width of the summed gradient that comes from the box alone, in units."""
        return float(-self.totals[name].sum() / self.totals[name][0].numel())


def selection_bytes(parameters: Mapping[str, Tensor], neighbours: Neighbours, distance: int, records: int) -> int:
    """Memory that a tally needs for its selection, about."""
    return _departing(neighbours, distance, records) * 8 * sum(value.numel() for value in parameters.values())


def _departing(neighbours: Neighbours, distance: int, records: int) -> int:
    """How many of the batch's records may have left and must be selected."""
    return min(distance, records) if neighbours.departures else 0
