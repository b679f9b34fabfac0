"""Rivals of private answers that need no certificates: noisy descent, DP-SGD, public labels.

All of them see the same features and offsets as heads do, and follow one public rule for their
settings. Their noise comes from ordinary generators: they are for comparisons, not for release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..accounting import Budget
from ..arrays import Floats
from ..heads import LinearRecipe
from ..heads.linear_recipe import noise_per_sensitivity
from .dpsgd import DpSgdSettings, predict, rehearse_dpsgd
from .stage import HeadArrays, Stage

_STEPS = 200
_EPOCHS, _BATCHES = 20, 10
_FOLDS = 3
_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # inverse strengths among which cross-validation chooses


@dataclass(frozen=True)
class DescentSettings:
    """The bound on the norm of each record's gradient, and the sum of the step sizes."""

    clip: float
    travel: float


def default_settings(stage: Stage, budget: Budget) -> DescentSettings:
    """Return the clip and travel of `LinearRecipe.for_release`, which suit noisy descent, too."""
    recipe = LinearRecipe.for_release(
        records=stage.records, features=stage.features, classes=stage.classes, budget=budget
    )
    return DescentSettings(recipe.clip, recipe.travel)


def noisy_descent_accuracy(
    stage: Stage, budget: Budget, seed: int, settings: DescentSettings | None = None
) -> float:
    """Return the accuracy of full-batch descent with Gaussian noise in every step.

    The steps together are one Gaussian mechanism, so their noise is exactly calibrated.
    """
    chosen = settings or default_settings(stage, budget)
    clip = chosen.clip
    moved = 2.0 if stage.neighbours == "replace" else 1.0
    noise = moved * clip * noise_per_sensitivity(budget) * math.sqrt(_STEPS) / stage.times
    seen, chance = stage.training, np.random.default_rng(seed)
    norms = np.linalg.norm(seen.features, axis=1, keepdims=True)
    targets = np.eye(stage.classes)[stage.y]
    weights = np.zeros((seen.offsets.shape[1], seen.features.shape[1]))
    for _ in range(_STEPS):
        gradients = _residuals(_logits(seen, weights), targets)
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True) * norms
        gradients *= np.minimum(1.0, clip / np.maximum(lengths, 1e-12))
        total = gradients.T @ seen.features + noise * chance.normal(size=weights.shape)
        weights -= chosen.travel / _STEPS / len(stage.y) * total
    return _accuracy(_logits(stage.queries, weights), stage)


def _logits(seen: HeadArrays, weights: Floats) -> Floats:
    return np.asarray(seen.features @ weights.T + seen.offsets)


def _residuals(logits: Floats, targets: Floats) -> Floats:
    """Return the derivative of the cross-entropy by the logits: one for two classes."""
    if logits.shape[1] == 1:
        return 1.0 / (1.0 + np.exp(-np.clip(logits, -500.0, 500.0))) - targets[:, 1:]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True) - targets)


def _accuracy(logits: Floats, stage: Stage) -> float:
    labels = (logits[:, 0] > 0.0) if logits.shape[1] == 1 else logits.argmax(1)
    return float(np.mean(labels == stage.query_y))


class _OffsetLinear(nn.Module):
    """A linear layer from 0; the last columns of its input are added to its outputs."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.linear.out_features
        logits: Tensor = self.linear(x[:, :-outputs]) + x[:, -outputs:]
        return logits


def dpsgd_accuracy(
    stage: Stage, budget: Budget, seed: int, settings: DescentSettings | None = None
) -> float:
    """Return the accuracy of a linear model that DP-SGD (Opacus) trained."""
    chosen = settings or default_settings(stage, budget)
    batch = max(1, stage.records // _BATCHES)
    rate = chosen.travel / (_EPOCHS * _BATCHES)
    sgd = DpSgdSettings(_EPOCHS, batch, rate, chosen.clip)
    seen = stage.training
    model = _OffsetLinear(seen.features.shape[1], seen.offsets.shape[1])
    trained = rehearse_dpsgd(
        model, _joined(seen), torch.from_numpy(stage.y), sgd, budget, seed, stage.records
    )
    labels = predict(trained, _joined(stage.queries))
    return float((labels == stage.right).double().mean())


def _joined(seen: HeadArrays) -> Tensor:
    return torch.from_numpy(np.hstack([seen.features, seen.offsets])).float()


def public_labels_accuracy(stage: Stage) -> float | None:
    """Return the accuracy of a logistic regression on the public labels; None if there are none."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    if stage.public is None:
        return None
    x, y = stage.public
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(_PENALTIES)}, cv=_FOLDS)
    search.fit(_columns(stage.arrays(x)), y)
    return float(search.score(_columns(stage.queries), stage.query_y))


def _columns(seen: HeadArrays) -> Floats:
    return np.hstack([seen.features, seen.offsets])
