"""Setting: how a model is trained for an experiment. All of it is public, and part of the cell's name."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from holdfast.errors import InvalidInput
from holdfast.examples.task import Task
from holdfast.layers.architectures import make_model
from holdfast.layers.start import zero_output
from holdfast.models.ensemble import CertifiedEnsemble, train_ensemble
from holdfast.preprocessing import Preprocessing
from holdfast.training import Recipe

LIMIT = 3.0  # whitened features are clipped to -LIMIT..LIMIT


@dataclass(frozen=True)
class Setting:
    """One way to train. The normaliser is `recipe.batch_size`, divided among the members; only 'replace' lets it be left open."""

    recipe: Recipe
    neighbours: str
    reach: int = 1  # every distance up to this, for a single model; members of ensembles have fewer records, and need less
    model: str = "mlp:100"
    start: str = "default"  # or "paired", "active" (public/start.py), "pretrained"
    shrinkage: float | None = None  # of public whitening; None: features as they are
    distances: tuple[int, ...] | None = None  # these instead of all up to `reach`: certificates then count in ranks

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recipe": self.recipe.as_dict()}

    def member_reach(self, members: int) -> int:
        """Distances that each of `members` is bounded at."""
        least = min(self.reach, 3 if self.start == "pretrained" else 8)  # each distance of a large network is dear
        return max(least, -(-self.reach // members))

    def told(self) -> str:
        """In words, for figures and reports."""
        recipe, help_given = self.recipe, [] if self.shrinkage is None else [f"public whitening {self.shrinkage:g}"]
        if self.start != "default":
            help_given.append(f"{self.start} start")
        steps = f"{recipe.epochs} step{'s' if recipe.epochs > 1 else ''}, rate {recipe.learning_rate:g}, clip {recipe.clip:g}"
        return ", ".join([self.model, steps, self.neighbours, *help_given])


def preprocessing_of(task: Task, shrinkage: float | None) -> Preprocessing | None:
    """Whitening by the task's public records."""
    return None if shrinkage is None else Preprocessing.whitening(task.public_x, shrinkage, LIMIT)


def start_model(setting: Setting, inputs: int, outputs: int, seed: int, pretrained: nn.Module | None) -> nn.Module:
    """The untrained model of a setting."""
    if setting.start == "pretrained":
        assert pretrained is not None
        return copy.deepcopy(pretrained)
    model = make_model(setting.model, inputs, outputs, seed)
    match setting.start:
        case "default":
            return model
        case "paired":
            return zero_output(model)
        case "active":
            return zero_output(model, active=LIMIT)
    raise InvalidInput(f"start={setting.start!r}: expected 'default', 'paired', 'active' or 'pretrained'")


def train_members(task: Task, setting: Setting, members: int, seed: int, pretrained: nn.Module | None = None) -> CertifiedEnsemble:
    """A single model is an ensemble of one."""
    size = setting.recipe.batch_size
    outputs = 1 if setting.recipe.loss == "binary_cross_entropy" else 2
    return train_ensemble(
        lambda member: start_model(setting, task.x[0].numel(), outputs, 1000 * seed + member, pretrained),
        task.x,
        task.y,
        replace(setting.recipe, batch_size=None if size is None else max(1, round(size / members)), seed=seed),
        members,
        setting.neighbours,
        None if setting.distances else setting.member_reach(members),
        setting.distances,
        ids=range(len(task.y)),
        dataset=task.name,
        progress=False,
        preprocessing=preprocessing_of(task, setting.shrinkage),
    )
