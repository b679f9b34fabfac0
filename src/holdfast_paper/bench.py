"""Benches: each task with the paper's settings, our candidates, and the candidates of DP-SGD.

A Setting says how a model is trained. All of it is public, and part of the key of every cell.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from torch import nn

from holdfast.errors import InvalidInput
from holdfast.examples.demo import Task
from holdfast.files import digest
from holdfast.layers.initial import make_model, zero_output
from holdfast.models import CertifiedEnsemble
from holdfast.networks.recipe import Recipe
from holdfast.networks.training import train_ensemble
from holdfast.planning import DpSgdSettings
from holdfast.preprocessing import Preprocessing

LIMIT = 3.0  # whitened features are clipped to -LIMIT..LIMIT


@dataclass(frozen=True)
class Setting:
    """One way to train a model or an ensemble.

    The normaliser `recipe.batch_size` is divided among the members; only under 'replace' may it be
    None.
    """

    recipe: Recipe
    neighbours: str
    # Every distance up to `reach` is run for a single model. Members of ensembles have fewer
    # records and need fewer distances.
    reach: int = 1
    model: str = "mlp:100"
    start: str = "default"  # or "paired", "active" (both by hf.zero_output), "pretrained"
    shrinkage: float | None = None  # of public whitening; None means no whitening
    # If given, these distances are run instead of all up to `reach`; certificates then hold ranks.
    distances: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recipe": self.recipe.as_dict()}

    def member_reach(self, members: int) -> int:
        """Return the largest distance at which each of `members` is bounded."""
        # Each distance of a large network is expensive.
        least = min(self.reach, 3 if self.start == "pretrained" else 8)
        return max(least, -(-self.reach // members))

    def describe(self) -> str:
        """Return the setting in words, for figures and reports."""
        recipe, help_given = (
            self.recipe,
            [] if self.shrinkage is None else [f"public whitening {self.shrinkage:g}"],
        )
        if self.start != "default":
            help_given.append(f"{self.start} start")
        steps = (
            f"{recipe.epochs} step{'s' if recipe.epochs > 1 else ''}, rate "
            f"{recipe.learning_rate:g}, clip {recipe.clip:g}"
        )
        return ", ".join([self.model, steps, self.neighbours, *help_given])


def preprocessing_of(task: Task, shrinkage: float | None) -> Preprocessing | None:
    """Return whitening by the task's public records, or None if `shrinkage` is None."""
    return (
        None
        if shrinkage is None
        else Preprocessing.whitening(task.public_x, shrinkage=shrinkage, limit=LIMIT)
    )


def start_model(
    setting: Setting, inputs: int, outputs: int, seed: int, pretrained: nn.Module | None
) -> nn.Module:
    """Return the untrained model of a setting."""
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
    raise InvalidInput(
        f"start={setting.start!r}: expected 'default', 'paired', 'active' or 'pretrained'"
    )


def train_members(
    task: Task, setting: Setting, members: int, seed: int, pretrained: nn.Module | None = None
) -> CertifiedEnsemble:
    """Train an ensemble with the setting; a single model is an ensemble of one."""
    size = setting.recipe.batch_size
    outputs = setting.recipe.loss_function.outputs(2)
    return train_ensemble(
        lambda member: start_model(
            setting, task.x[0].numel(), outputs, 1000 * seed + member, pretrained
        ),
        task.x,
        task.y,
        replace(
            setting.recipe,
            batch_size=None if size is None else max(1, round(size / members)),
            seed=seed,
        ),
        members=members,
        neighbours=setting.neighbours,
        max_distance=None if setting.distances else setting.member_reach(members),
        distances=setting.distances,
        ids=range(len(task.y)),
        dataset=task.name,
        progress=False,
        preprocessing=preprocessing_of(task, setting.shrinkage),
    )


_LOGIT = "binary_cross_entropy"
_DECAY: dict[str, Any] = {"decay": 0.5, "loss": _LOGIT}


@dataclass(frozen=True)
class DpSgdCandidate:
    """One candidate setting of DP-SGD, with the same kinds of public help as ours."""

    settings: DpSgdSettings
    shrinkage: float | None
    start: str

    def describe(self) -> str:
        """Return the candidate in words, for figures and reports."""
        return f"{self.settings}, whitening {self.shrinkage}, {self.start} start"


@dataclass(frozen=True, eq=False)
class Bench:
    """All settings of one task for the figures that compare mechanisms."""

    task: Task
    title: str
    paper: Setting
    ours: Sequence[Setting]  # candidate settings
    dpsgd: DpSgdSettings  # the paper's
    dpsgd_tuned: Sequence[DpSgdCandidate]  # candidate settings, as many as ours
    note: str  # what differs from the paper
    pretrained: nn.Module | None = None  # public layers to start from
    seeds: int = 3

    @property
    def records(self) -> int:
        """The approximate number of private records, which is public."""
        size = self.ours[0].recipe.batch_size
        assert size is not None
        return size

    @cached_property
    def public_start(self) -> str:
        """A digest of the pre-trained layers, or an empty string if there are none."""
        return "" if self.pretrained is None else digest("start", "", self.pretrained.state_dict())

    def subsample(self) -> Bench:
        """Return a bench for quick runs: fewer records, distances, candidates and epochs."""
        return replace(
            self,
            task=self.task.subsample(400, 100),
            paper=_small(self.paper),
            ours=[_small(setting) for setting in self.ours[:2]],
            dpsgd=replace(self.dpsgd, epochs=1, batch=200),
            dpsgd_tuned=[
                replace(tuned, settings=replace(tuned.settings, epochs=1, batch=200))
                for tuned in self.dpsgd_tuned[:2]
            ],
            seeds=1,
        )


def _small(setting: Setting) -> Setting:
    size = None if setting.recipe.batch_size is None else 400
    return replace(
        setting,
        reach=4,
        recipe=replace(setting.recipe, epochs=min(2, setting.recipe.epochs), batch_size=size),
    )


def blobs_bench(task: Task) -> Bench:
    """Return the bench of the far blobs, with logistic regression."""
    recipe = Recipe(epochs=1, learning_rate=2.0, decay=0.6, clip=0.06)
    ours = replace(recipe, batch_size=5000)
    shrinkages = (None, 0.1, 0.3, 1.0)
    return Bench(
        task=task,
        title="Blobs (far)",
        paper=Setting(recipe, "replace", 2000, "linear-box"),
        ours=[
            Setting(ours, "add_remove", 2000, "linear-box", "paired", shrinkage)
            for shrinkage in shrinkages
        ],
        dpsgd=DpSgdSettings(epochs=1, batch=1000, learning_rate=2.0, clip=0.06),
        dpsgd_tuned=[
            DpSgdCandidate(DpSgdSettings(5, 1000, rate, 1.0), shrinkage, "paired")
            for rate, shrinkage in product((0.5, 2.0), (None, 0.3))
        ],
        note="batch size of DP-SGD (1,000) is not given in the paper",
    )


def octmnist_bench(task: Task, pretrained: nn.Module) -> Bench:
    """Return the bench of OctMNIST, with the dense layers of a pre-trained convolutional network.

    The network was trained without Drusen; its convolutions are frozen.
    """
    paper = Recipe(
        epochs=4,
        learning_rate=0.06,
        min_learning_rate=0.001,
        clip=1.0,
        momentum=0.95,
        nesterov=True,
        **_DECAY,
    )
    steps = product((0.01, 0.1), (0.3, 0.6, 1.0, 2.0))
    ours = [
        Recipe(epochs=1, learning_rate=rate * 0.02 / clip, clip=clip, batch_size=12_000, **_DECAY)
        for clip, rate in steps
    ]
    rivals = [
        DpSgdCandidate(DpSgdSettings(epochs, 1000, rate, 1.0, 0.9), None, "pretrained")
        for epochs, rate in product((4, 10), (0.003, 0.01, 0.03, 0.1))
    ]
    return Bench(
        task=task,
        title="OctMNIST",
        paper=Setting(paper, "replace", 30, "pretrained dense 3200-100-1", "pretrained"),
        ours=[
            Setting(recipe, "add_remove", 200, "pretrained dense 3200-100-1", "pretrained")
            for recipe in ours
        ],
        dpsgd=DpSgdSettings(epochs=4, batch=1000, learning_rate=0.06, clip=1.0, momentum=0.95),
        dpsgd_tuned=rivals,
        note=(
            "another split of the same scans, with fewer images per class, and public scans of "
            "patients who are also in the private ones; accuracy is over all four classes of the "
            "test images, three quarters of which are abnormal"
        ),
        pretrained=pretrained,
    )


def imdb_bench(task: Task) -> Bench:
    """Return the bench of IMDB: embeddings of reviews, with one hidden layer of 100 units."""
    paper = Recipe(epochs=3, learning_rate=0.2, clip=0.04, momentum=0.99, dampening=0.3, **_DECAY)
    ours = Recipe(epochs=1, learning_rate=0.1, clip=0.01, batch_size=25_000, loss=_LOGIT)
    shrinkages = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0)
    rivals = product((2.0, 8.0), (0.1, 0.3), ("default", "active"))
    return Bench(
        task=task,
        title="IMDB",
        paper=Setting(paper, "replace", 100),
        ours=[
            Setting(ours, "add_remove", 600, start="active", shrinkage=shrinkage)
            for shrinkage in shrinkages
        ],
        dpsgd=DpSgdSettings(epochs=3, batch=4000, learning_rate=0.2, clip=0.04, momentum=0.99),
        dpsgd_tuned=[
            DpSgdCandidate(DpSgdSettings(10, 1000, rate, 1.0), shrinkage, start)
            for rate, shrinkage, start in rivals
        ],
        note=(
            "25,000 private reviews; embeddings standardised with public statistics; one review "
            "in 200 occurs twice and is in two parts"
        ),
    )
