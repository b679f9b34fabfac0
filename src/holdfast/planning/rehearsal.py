"""Rehearsals: what a way would reach on the private records, judged by other records.

A model of fewer records is less accurate. Some ways lose more by that than others, since they fit
closer. So every way is tried with all records of a rehearsal and with half of them, and the
difference is carried on to the number of private records. A linear model with d features can
separate up to about 2 d records whatever their labels are, so the error is taken to be a constant
plus another one divided by the number of records beyond 2 d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..accounting import Budget
from ..arrays import Integers
from .stage import Stage
from .ways import PublicLabels, Way

FOLDS = 3
_MADE_UP_RECORDS, _MADE_UP_QUERIES, _MADE_UP_FEATURES = 20_000, 2000, 200
MADE_UP_ACCURACY = 0.85
_NARROWEST = 0.3


@dataclass(frozen=True)
class Rehearsal:
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
        final = self.carried_on(
            lambda stage: found[id(stage)] or 0.0, way.final_records(self.stage)
        )
        return min(final, max(here, self._ceiling()))

    def _ceiling(self) -> float:
        """Return what carrying on never exceeds: a regression without noise.

        A way that fails with half of the records gains so much with the other half that carrying it
        on would promise more than the records hold.
        """
        if not self.halves or self.stage.public is None:
            return 1.0
        without_noise = PublicLabels()
        nothing = Budget(1.0)  # it spends none
        return self.carried_on(lambda stage: without_noise.accuracy(stage, nothing, 1) or 0.0)

    def carried_on(
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
) -> Iterator[Rehearsal]:
    """Yield a rehearsal per fold of labelled records: one fold asks, the others are trained on."""
    place = np.random.default_rng(0).permutation(len(y)) % FOLDS
    for fold in range(FOLDS):
        asks, learns = np.flatnonzero(place == fold), np.flatnonzero(place != fold)
        public = (x[learns], y[learns])
        stage = Stage(
            *public, x[asks], y[asks], public, records, classes, neighbours, options, scale
        )
        parts = [np.arange(first, len(learns), 2) for first in (0, 1)]
        yield Rehearsal(stage, tuple(stage.with_records(part) for part in parts))


def rehearse_on_made_up(records: int, features: int, classes: int, neighbours: str) -> Rehearsal:
    """Return a rehearsal on made-up records: clouds that a model tells apart in 85% of cases."""
    size = min(records, _MADE_UP_RECORDS)
    x, y = _clouds(size + _MADE_UP_QUERIES, min(features, _MADE_UP_FEATURES), classes)
    stage = Stage(x[:size], y[:size], x[size:], y[size:], None, records, classes, neighbours, {})
    return Rehearsal(stage)


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
