"""Losses: intervals of the loss gradient at the logits, over all models in a box."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import InvalidInput
from ..intervals import Interval, monotone
from ..kernels import ordered_sum
from . import Outputs
from .base import pairs


@dataclass(frozen=True)
class Loss(abc.ABC):
    """The loss of one record, as a function of its logits and its label in 0..classes-1."""

    @abc.abstractmethod
    def classes(self, outputs: int) -> int:
        """Return the number of classes that a model with this many outputs distinguishes.

        Raises if the number of outputs does not fit the loss.
        """

    def outputs(self, classes: int) -> int:
        """Return the number of outputs that a model needs to distinguish this many classes."""
        return classes

    @abc.abstractmethod
    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        """Return the gradient at the logits, (records, outputs); isotonic as executed."""

    @abc.abstractmethod
    def value(
        self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]
    ) -> Float[Tensor, " records"]:
        """Return the loss per record as torch computes it.

        `gradient` bounds the gradient of this function.
        """


class CrossEntropy(Loss):
    """-log softmax(z)_y; gradient p - onehot(y), p_i = 1 / sum_j exp(z_j - z_i).

    p depends only on differences of logits, and these are bounded by the last layer's `pairwise`,
    which counts activations that two logits share only once if that layer is dense. Each term
    decreases in its difference z_i - z_j, so the ends of p are exact given those bounds.
    """

    def classes(self, outputs: int) -> int:
        return _check_one_logit_per_class("cross_entropy", outputs)

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        lead = _pairwise_matrix(outputs.pairs)
        lower = 1.0 / ordered_sum(monotone.exp(-lead.lower))
        upper = 1.0 / ordered_sum(monotone.exp(-lead.upper))
        return Interval(lower, upper) - Interval.point(_onehot(labels, lower))

    def value(
        self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]
    ) -> Float[Tensor, " records"]:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


class BinaryCrossEntropy(Loss):
    """-log sigmoid(z) for label y = 1, -log(1 - sigmoid(z)) for y = 0; gradient sigmoid(z) - y.

    The model has one logit z.
    """

    def classes(self, outputs: int) -> int:
        if outputs != 1:
            raise InvalidInput(
                f"loss='binary_cross_entropy' needs a model with one logit, got {outputs}; "
                "use 'cross_entropy'"
            )
        return 2

    def outputs(self, classes: int) -> int:
        if classes != 2:
            raise InvalidInput(
                f"loss='binary_cross_entropy' is for 2 classes, not {classes}; use 'cross_entropy'"
            )
        return 1

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        chance = outputs.logits.map_increasing(monotone.sigmoid)
        return chance - Interval.point(labels[:, None].to(chance.lower.dtype))

    def value(
        self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]
    ) -> Float[Tensor, " records"]:
        targets = labels.to(logits.dtype)
        return torch.nn.functional.binary_cross_entropy_with_logits(
            logits[:, 0], targets, reduction="none"
        )


class SquaredError(Loss):
    """sum_i (z_i - onehot(y)_i)^2; gradient 2 (z - onehot(y))."""

    def classes(self, outputs: int) -> int:
        return _check_one_logit_per_class("squared_error", outputs)

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        error = outputs.logits - Interval.point(_onehot(labels, outputs.logits.lower))
        return error.map_increasing(lambda end: 2.0 * end)

    def value(
        self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]
    ) -> Float[Tensor, " records"]:
        return (logits - _onehot(labels, logits)).square().sum(1)


LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "squared_error": SquaredError(),
}


def _check_one_logit_per_class(loss: str, outputs: int) -> int:
    if outputs < 2:
        raise InvalidInput(
            f"loss={loss!r} needs a model with one logit per class, got {outputs}; "
            "use 'binary_cross_entropy'"
        )
    return outputs


def _onehot(
    labels: Int64[Tensor, " records"], like: Float[Tensor, "records outputs"]
) -> Float[Tensor, "records outputs"]:
    return torch.nn.functional.one_hot(labels, like.shape[1]).to(like.dtype)


def _pairwise_matrix(differences: Interval) -> Interval:
    """Return the bounds of z_i - z_j at index i, j: (records, classes, classes).

    The diagonal is 0.
    """
    count = differences.shape[1]
    classes = int((1 + (1 + 8 * count) ** 0.5) / 2)
    first, second = pairs(classes, differences.lower.device)
    lower = differences.lower.new_zeros(len(differences.lower), classes, classes)
    upper = lower.clone()
    lower[:, first, second], upper[:, first, second] = differences.lower, differences.upper
    lower[:, second, first], upper[:, second, first] = -differences.upper, -differences.lower
    return Interval(lower, upper)
