"""The ways to publish predictions under a budget, and the accuracy to expect of each."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr
from torch import Tensor, nn

from ..accounting import Budget
from ..arrays import Integers
from ..certificates import Certificate
from ..errors import HoldfastWarning
from ..heads import LinearRecipe
from ..heads.linear_recipe import noise_per_sensitivity
from ..mechanisms.sparse_vector import MIN_DELTA
from ..models import CertifiedHead, train
from ..training import Recipe
from .approximation import approximate_accuracy
from .outcomes import expected_outcomes, expected_sparse_vector_outcome, make_stable
from .rivals import dpsgd_accuracy, noisy_descent_accuracy, public_labels_accuracy
from .stage import Stage

CLOSED_FORM, RUN = "closed form", "run"
_MEMBERS = 10
_BOX_REACH = 150
_BOX_RATE, _BOX_CLIP = 3.0, 0.3
_DRAWS = 20


@dataclass(frozen=True)
class Way(ABC):
    """One way to publish predictions.

    Args:
        seeds: How often a rival with random training is run.
    """

    seeds: int = 3
    name: ClassVar[str]
    ours: ClassVar[bool] = True
    how: ClassVar[str] = CLOSED_FORM  # whether noise is averaged over exactly, or drawn
    any_queries: ClassVar[bool] = False  # whether the number of queries does not matter
    command: ClassVar[str] = ""

    @abstractmethod
    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        """Return the expected accuracy; None if the way cannot be taken."""

    def final_records(self, stage: Stage) -> int:
        """Return how many records the way learns from in the end."""
        return stage.records


def _recipe(stage: Stage, budget: Budget, queries: int, members: int = 1) -> LinearRecipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HoldfastWarning)  # a plan shows hopeless budgets too
        return LinearRecipe.for_budget(
            records=max(1, stage.records // members),
            features=stage.features,
            classes=stage.classes,
            budget=budget,
            queries=queries,
            neighbours=stage.neighbours,
        )


def _answered(stage: Stage, found: Certificate, budget: Budget, queries: int) -> float:
    if budget.delta > 0.0:
        return approximate_accuracy(found, stage.query_y, budget, queries)
    return expected_outcomes(make_stable)(found, stage.right, budget, queries).accuracy


class HeadAnswers(Way):
    """Answers one by one, from one head."""

    name = "answers from a head"
    command = "holdfast train ... --epsilon {e:g} --delta {d:g} --queries {q}, then `holdfast ask`"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float:
        found = stage.certificate(stage.head(_recipe(stage, budget, queries)))
        return _answered(stage, found, budget, queries)


class SparseVectorAnswers(Way):
    """Exact answers to stable queries, from one head, until a number of them were unstable."""

    name = "sparse vector"
    command = "hf.SparseVector(...) with hf.PrivatePredictor, on a head"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta < MIN_DELTA:
            return None
        found = stage.certificate(stage.head(_recipe(stage, budget, queries)))
        coarse = replace(found, distances=two_digits(found.distances))
        return expected_sparse_vector_outcome(coarse, stage.right, budget, queries).accuracy


def two_digits(distances: Tensor) -> Tensor:
    """Round distances down to two digits, so that few different ones are left."""
    unit = 10.0 ** (distances.clamp(min=1).double().log10().floor() - 1.0).clamp(min=0.0)
    return ((distances / unit).floor() * unit).long()


class EnsembleAnswers(Way):
    """Answers one by one, from the vote of ten heads on disjoint parts of the records."""

    name = "answers from an ensemble"
    command = "holdfast train ... --members 10 --queries {q}, then `holdfast ask`"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if len(stage.y) < 10 * _MEMBERS:
            return None
        recipe = _recipe(stage, budget, queries, _MEMBERS)
        found = stage.certificate(stage.head(recipe, members=_MEMBERS))
        return _answered(stage, found, budget, queries)


class BoxAnswers(Way):
    """Answers one by one, from a linear model that was trained for one step with boxes."""

    name = "answers from boxes"
    command = (
        "holdfast train ... --model linear-box --zero-output --epochs 1 --learning-rate 3 --clip "
        "0.3, then `holdfast ask`"
    )

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float:
        found = stage.once("boxes", lambda: self._certificate(stage))
        return _answered(stage, found, budget, queries)

    def _certificate(self, stage: Stage) -> Certificate:
        reach = max(1, math.ceil(_BOX_REACH / stage.times))
        trained = train(
            self._model(stage),
            stage.x,
            stage.y,
            Recipe(learning_rate=_BOX_RATE, clip=_BOX_CLIP, batch_size=len(stage.y)),
            neighbours=stage.neighbours,
            max_distance=reach,
            ids=range(len(stage.y)),
            progress=False,
        )
        return stage.certificate(trained)

    def _model(self, stage: Stage) -> nn.Module:
        linear = nn.Linear(stage.features, stage.classes)
        nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
        encoder = stage.options.get("encoder")
        if encoder is None:
            return linear
        return nn.Sequential(*encoder.requires_grad_(False), linear)


class HeadRelease(Way):
    """The head itself, released once with noise."""

    name = "release of the head"
    any_queries = True
    command = (
        "holdfast train ... --release --epsilon {e:g} --delta {d:g}, `holdfast budget create NAME "
        "--release --epsilon {e:g} --delta {d:g}`, then `holdfast release`"
    )

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta == 0.0:
            return None
        return stage.once(("release", budget), lambda: self._accuracy(stage, budget))

    def _accuracy(self, stage: Stage, budget: Budget) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)
            recipe = LinearRecipe.for_release(
                records=stage.records,
                features=stage.features,
                classes=stage.classes,
                budget=budget,
                neighbours=stage.neighbours,
            )
        head, noise = head_and_noise(stage, recipe, budget)
        return released_accuracy(head, noise, stage.query_x, stage.query_y)


def head_and_noise(
    stage: Stage, recipe: LinearRecipe, budget: Budget
) -> tuple[CertifiedHead, float]:
    """Return a head, and the deviation of the noise that its release adds to each weight."""
    head = stage.head(recipe, "softmax")
    assert isinstance(head, CertifiedHead)
    return head, noise_per_sensitivity(budget) * head.ball.sensitivity / stage.times


def released_accuracy(head: CertifiedHead, noise: float, query_x: Any, query_y: Integers) -> float:
    """Return the expected accuracy of a head with Gaussian noise of this deviation per weight.

    For two classes it is exact: the noise of a score is Gaussian, too. For more it is the mean of
    some draws.
    """
    features, norms, offsets = head.inputs(head.features(query_x), head.scheme)
    weights = head.weights.numpy()
    if head.classes == 2:
        margins = (features @ weights[0] + offsets[:, 0]) * (2 * query_y - 1)
        return float(ndtr(margins / np.maximum(noise * norms, 1e-300)).mean())
    chance = np.random.default_rng(0)
    right = [
        (features @ (weights + noise * chance.normal(size=weights.shape)).T + offsets).argmax(1)
        == query_y
        for _ in range(_DRAWS)
    ]
    return float(np.mean(right))


class _Rival(Way):
    """A way that is run with several seeds, for a budget alone."""

    ours = False
    how = RUN
    any_queries = True

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta == 0.0:
            return None
        return stage.once((self.name, budget), lambda: self._mean(stage, budget))

    def _mean(self, stage: Stage, budget: Budget) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)
            return float(np.mean([self._run(stage, budget, seed) for seed in range(self.seeds)]))

    @abstractmethod
    def _run(self, stage: Stage, budget: Budget, seed: int) -> float: ...


class NoisyDescent(_Rival):
    """Full-batch descent with noise in every step, outside holdfast."""

    name = "noisy descent"

    def _run(self, stage: Stage, budget: Budget, seed: int) -> float:
        return noisy_descent_accuracy(stage, budget, seed)


class DpSgd(_Rival):
    """DP-SGD by Opacus, outside holdfast."""

    name = "DP-SGD"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if stage.neighbours != "add_remove":  # Opacus counts under add_remove alone
            return None
        return super().accuracy(stage, budget, queries)

    def _run(self, stage: Stage, budget: Budget, seed: int) -> float:
        return dpsgd_accuracy(stage, budget, seed)


class PublicLabels(Way):
    """A model of public labels alone, which needs no budget."""

    name = "public labels alone"
    ours = False
    how = RUN
    any_queries = True

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        return stage.once(self.name, lambda: public_labels_accuracy(stage))

    def final_records(self, stage: Stage) -> int:
        # In the end it learns from those that ask in a rehearsal, too.
        return len(stage.y) + len(stage.query_y)


WAYS: tuple[type[Way], ...] = (
    HeadAnswers,
    HeadRelease,
    EnsembleAnswers,
    BoxAnswers,
    SparseVectorAnswers,
    NoisyDescent,
    DpSgd,
    PublicLabels,
)
"""All ways; of two that are equally good, a plan recommends the first."""
