"""Bounds on a batch's summed gradient, over all models in a box and all neighbouring batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from .. import kernels
from ..intervals import Interval
from ..layers import Gradient
from ..relations import Neighbours


def layout(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns in which a parameter's gradient is summed.

    Matrices (dense weights) are summed as outputs x inputs, all other shapes as one row.
    """
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape.numel())


class GradientSums:
    """Gradient sums of one batch over one box, with bounds at every distance up to `farthest`.

    Let s be the sum of the lower ends over the batch's records, in units of clip / UNITS. The lower
    bound at distance k is

        add_remove   s - k * UNITS
        replace      s - (sum of the k largest lower ends) - k * UNITS
        remove       s - (sum of the k largest of max(lower end, 0))

    and the upper bound is the negative of the same expression for the negated upper ends (theory:
    docs/theory/descent.md). Public records are summed but never selected.

    A record whose numbers overflow counts as 0 at distance 0, and as its whole clip range at all
    other distances. It therefore moves a bound by no more than any other record, and no input is
    rejected because of it.

    If moves are whole persons, each record of a person with m records is clipped at UNITS // m, so
    that the person moves a bound by no more than UNITS (docs/theory/persons.md).

    Guarantees:
        All sums are sums of whole numbers and exact, so records may come in any order. The bounds
        are isotonic in every record's interval.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], neighbours: Neighbours, farthest: int, records: int
    ) -> None:
        self.neighbours = neighbours
        self.records = records
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.totals: dict[str, Tensor] = {}
        self.largest: dict[str, Any] = {}
        self.overflowed = dict.fromkeys(parameters, 0)  # records, public ones included
        self.overflowed_units = dict.fromkeys(parameters, 0)  # the sum of their clips
        self.selectable = dict.fromkeys(parameters, 0)  # private records that did not overflow
        floor = kernels.LOWEST if neighbours.adds_records else 0
        depart = _departure_count(neighbours, farthest, records)
        for name, value in parameters.items():
            rows, columns = layout(value.shape)
            self.totals[name] = torch.zeros(
                2, rows, columns, dtype=torch.float64, device=value.device
            )
            if depart:
                self.largest[name] = kernels.largest_entries(
                    rows, columns, depart, floor, value.device
                )

    def accumulate(
        self,
        name: str,
        gradient: Gradient,
        finite: Bool[Tensor, " records"],
        private: bool,
        limits: Int64[Tensor, " records"] | None = None,
    ) -> None:
        """Add a block of records; those that are not `finite` have overflowed.

        `limits` are the clips of the records in whole units; None: UNITS.
        """
        count = int(finite.sum())
        if count < len(finite):
            gradient = gradient.rows(finite)
            lost = len(finite) - count
            self.overflowed[name] += lost
            self.overflowed_units[name] += (
                lost * kernels.UNITS if limits is None else int(limits[~finite].sum())
            )
            limits = None if limits is None else limits[finite]
        gradient.add_to(self.totals[name], self.largest.get(name) if private else None, limits)
        self.selectable[name] += count if private else 0

    def merge(self, other: GradientSums) -> None:
        """Add the sums over other records of the same batch.

        Guarantees:
            The result is that of accumulating all records here: whole numbers are added, and the
            largest entries of both are those of all.
        """
        for name in self.shapes:
            self.totals[name] += other.totals[name]
            self.overflowed[name] += other.overflowed[name]
            self.overflowed_units[name] += other.overflowed_units[name]
            self.selectable[name] += other.selectable[name]
            if name in self.largest:
                self.largest[name].merge(other.largest[name])

    def bounds(self, name: str, distance: int) -> Interval:
        """Return the bounds of the summed gradient at a distance, in units, as float64."""
        worst = self.totals[name]
        if distance:
            adds_records = distance if self.neighbours.adds_records else 0
            worst = worst - (adds_records * kernels.UNITS + self.overflowed_units[name])
        if distance and name in self.largest:
            worst = worst - self._departed_sum(name, distance).to(worst.device)
        return Interval(worst[0], -worst[1]).map_entries(lambda end: end.view(self.shapes[name]))

    def _departed_sum(self, name: str, distance: int) -> Tensor:
        """Return the largest sum that departed records can have contributed.

        Records that overflowed count as the smallest possible entry.
        """
        count = _departure_count(self.neighbours, distance, self.records)
        chosen = min(count, self.selectable[name])
        smallest = -kernels.UNITS if self.neighbours.adds_records else 0
        departed: Tensor = self.largest[name].sums(chosen) + (count - chosen) * smallest
        return departed

    def width_from_box(self, name: str) -> float:
        """Return the mean width of the summed gradient that comes from the box alone, in units."""
        return float(-self.totals[name].sum() / self.totals[name][0].numel())


def selection_bytes(
    parameters: Mapping[str, Tensor], neighbours: Neighbours, distance: int, records: int
) -> int:
    """Return about how many bytes the selection of the largest entries needs."""
    return (
        _departure_count(neighbours, distance, records)
        * 8
        * sum(value.numel() for value in parameters.values())
    )


def _departure_count(neighbours: Neighbours, distance: int, records: int) -> int:
    """Return how many of the batch's records may have departed and must be selected."""
    return min(distance, records) if neighbours.selects_removals else 0
