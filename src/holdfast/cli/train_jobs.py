"""The two kinds of training jobs of `holdfast train`: linear heads and networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast as hf

from .train_tables import PrivateTable

if TYPE_CHECKING:
    from torch import nn


def refuse_options(options: dict[str, Any], why: str) -> None:
    """Raise InvalidInput if an option that does not apply was given."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise hf.errors.InvalidInput(f"--{given.replace('_', '-')} is {why}")


def needed_distance(rules: hf.Preprocessing, budget: hf.Budget, queries: int) -> int:
    """Return how stable a label must be for noise to change its answer in 0.1% of cases."""
    classes, ways = (
        len(rules.classes),
        ("budgeted response", "stable response, optimal composition"),
    )
    (row,) = hf.planning.needed_distances([(budget, queries)], classes=classes, flips=0.001)
    found = row["distance"][ways[0] if budget.delta > 0.0 else ways[1]]
    if not isinstance(found, int):
        raise hf.errors.InvalidInput(
            f"{queries:,} queries under {budget} need labels that are stable at a distance of "
            f"{found}: plan for fewer queries or a larger budget, or give --max-distance"
        )
    return max(1, found)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class HeadJob:
    """A job that trains a linear head, with a recipe chosen for a budget and a number of queries.

    `options` are settings of the recipe, or None if they are not given. A `goal` without a number
    of queries is a release.
    """

    table: PrivateTable
    options: dict[str, Any]
    batch_size: int | None
    goal: tuple[hf.Budget, int | None]
    settings: dict[str, Any]

    @property
    def relation(self) -> hf.Neighbours:
        relation = hf.Neighbours.of(self.settings["neighbours"])
        return relation.per_person() if self.table.per_person else relation

    @cached_property
    def recipe(self) -> hf.LinearRecipe:
        rules = self.settings["preprocessing"]
        size = self.batch_size
        if size is None:
            if not self.relation.exchanges:
                raise hf.errors.InvalidInput(
                    "--batch-size is missing: under 'add_remove' the number of "
                    f"{self.relation.unit}s is private; say about how many there are, as a round "
                    "number that you would choose without looking at the table, for example "
                    "--batch-size 1000"
                )
            count = self.table.persons_count if self.table.per_person else self.table.count
            if count is None:
                raise hf.errors.InvalidInput(
                    "--batch-size is missing: persons in Parquet files are not counted beforehand; "
                    "give about how many there are"
                )
            size = -(-count // (self.settings["members"] * self.options["batches"]))
        budget, queries = self.goal
        public = {
            "features": rules.width,
            "records": size * self.options["batches"],
            "classes": len(rules.classes),
            "budget": budget,
            "neighbours": self.relation,
        }
        if queries is None:
            chosen = hf.LinearRecipe.for_release(**public)
        else:
            chosen = hf.LinearRecipe.for_budget(queries=queries, **public)
        return replace(chosen, batch_size=size, **_given(self.options))

    def train(self, progress: bool) -> hf.models.CertifiedModel:
        return hf.train_linear(
            self.table.x,
            self.table.y,
            self.recipe,
            classes=None,
            multiclass=self._multiclass,
            progress=progress,
            **self.settings,
        )

    @property
    def _multiclass(self) -> str:
        return "softmax" if self.goal[1] is None else "pairs"

    def estimate(self) -> hf.training.Estimate:
        return hf.models.estimate_linear_training(
            self.table.x,
            self.table.y,
            self.recipe,
            multiclass=self._multiclass,
            **self.settings,
        )

    @property
    def next_step(self) -> str:
        return "holdfast release" if self.goal[1] is None else "holdfast certify, holdfast simulate"

    @property
    def hint(self) -> str:
        if self.settings["preprocessing"].whitener is not None:
            return ""
        return "Public rows of the same kind (--public) usually make a head more accurate."

    def text(self) -> str:
        recipe, (budget, queries) = self.recipe, self.goal
        chosen = f"travel {recipe.travel:g} and clip {recipe.clip:g}"
        if self.options["travel"] is not None or self.options["clip"] is not None:
            return chosen
        purpose = "a release" if queries is None else f"{queries:,} queries"
        return f"{chosen} for {purpose} under {budget}"


@dataclass(frozen=True)
class NetworkJob:
    """A job that trains a network, or an ensemble of networks, with boxes.

    `options` are settings of the recipe, or None if they are not given.
    """

    table: PrivateTable
    options: dict[str, Any]
    model: str
    zero_output: bool
    checkpoint: Path | None
    settings: dict[str, Any]

    @cached_property
    def recipe(self) -> hf.Recipe:
        return hf.Recipe(**_given(self.options))

    def _make(self, member: int) -> nn.Module:
        rules, recipe = self.settings["preprocessing"], self.recipe
        outputs = recipe.loss_function.outputs(len(rules.classes))
        inputs = sum(column.width for column in rules.columns)
        made = hf.layers.make_model(self.model, inputs, outputs, recipe.seed + member)
        return hf.zero_output(made) if self.zero_output else made

    def train(self, progress: bool) -> hf.models.CertifiedModel:
        settings = {**self.settings, "checkpoint": self.checkpoint, "progress": progress}
        if settings["members"] > 1:
            return hf.train_ensemble(
                self._make, self.table.x, self.table.y, self.recipe, **settings
            )
        del settings["members"]
        return hf.train(self._make(0), self.table.x, self.table.y, self.recipe, **settings)

    next_step = "holdfast certify, holdfast simulate"

    def estimate(self) -> hf.training.Estimate:
        left_out = ("dataset", "engine")
        settings = {name: each for name, each in self.settings.items() if name not in left_out}
        return hf.models.estimate_training(
            self._make, self.table.x, self.table.y, self.recipe, **settings
        )

    @property
    def hint(self) -> str:
        return ""

    def text(self) -> str:
        return f"every distance to {self.settings['max_distance'] or 100}"
