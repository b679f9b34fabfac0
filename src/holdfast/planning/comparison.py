"""Plan: what to expect of every way to publish predictions, and which one to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from ..accounting import Budget
from ..certificates.usefulness import NO_BETTER
from ..errors import InvalidInput
from .map import draw_map
from .rehearsal import MADE_UP_ACCURACY
from .ways import WAYS, PublicLabels

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
