"""Losses: the interval of the loss's gradient at the logits, for every model in a box."""

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
    """One record's loss, as a function of its logits and its label 0..classes-1."""

    @abc.abstractmethod
    def classes(self, outputs: int) -> int:
        """How many classes a model with this many outputs tells apart; refuses outputs that do not fit."""

    @abc.abstractmethod
    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        """(records, outputs): the gradient at the logits. Isotonic as executed."""

    @abc.abstractmethod
    def value(self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]) -> Float[Tensor, " records"]:
        """The loss itself, one number a record, as torch computes it: what the gradient is the gradient of."""


class CrossEntropy(Loss):
    """-log softmax(z)_y; gradient p - onehot(y), p_i = 1 / sum_j exp(z_j - z_i).

    p depends on differences of logits only, and those are bounded on the last layer's differences, where activations
    shared by two logits are counted once. Each term falls in its difference, so the ends of p are exact given those.
    """

    def classes(self, outputs: int) -> int:
        return _several("cross_entropy", outputs)

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        lead = _square(outputs.pairs)
        lower = 1.0 / ordered_sum(monotone.exp(-lead.lower))
        upper = 1.0 / ordered_sum(monotone.exp(-lead.upper))
        return Interval(lower, upper) - Interval.point(_onehot(labels, lower))

    def value(self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]) -> Float[Tensor, " records"]:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


class BinaryCrossEntropy(Loss):
    """One logit z, label 0 or 1: -log sigmoid(z) or -log(1 - sigmoid(z)); gradient sigmoid(z) - y."""

    def classes(self, outputs: int) -> int:
        if outputs != 1:
            raise InvalidInput(f"loss='binary_cross_entropy' needs a model with one logit, got {outputs}; use 'cross_entropy'")
        return 2

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        chance = outputs.logits.both(monotone.sigmoid)
        return chance - Interval.point(labels[:, None].to(chance.lower.dtype))

    def value(self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]) -> Float[Tensor, " records"]:
        targets = labels.to(logits.dtype)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], targets, reduction="none")


class SquaredError(Loss):
    """sum_i (z_i - onehot(y)_i)^2; gradient 2 (z - onehot(y))."""

    def classes(self, outputs: int) -> int:
        return _several("squared_error", outputs)

    def gradient(self, outputs: Outputs, labels: Int64[Tensor, " records"]) -> Interval:
        error = outputs.logits - Interval.point(_onehot(labels, outputs.logits.lower))
        return error.both(lambda end: 2.0 * end)

    def value(self, logits: Float[Tensor, "records outputs"], labels: Int64[Tensor, " records"]) -> Float[Tensor, " records"]:
        return (logits - _onehot(labels, logits)).square().sum(1)


LOSSES: dict[str, Loss] = {
    "cross_entropy": CrossEntropy(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "squared_error": SquaredError(),
}


def _several(loss: str, outputs: int) -> int:
    if outputs < 2:
        raise InvalidInput(f"loss={loss!r} needs a model with one logit per class, got {outputs}; use 'binary_cross_entropy'")
    return outputs


def _onehot(labels: Int64[Tensor, " records"], like: Float[Tensor, "records outputs"]) -> Float[Tensor, "records outputs"]:
    return torch.nn.functional.one_hot(labels, like.shape[1]).to(like.dtype)


def _square(differences: Interval) -> Interval:
    """(records, pairs) -> (records, classes, classes): entry i, j bounds z_i - z_j; the diagonal is 0."""
    count = differences.shape[1]
    classes = int((1 + (1 + 8 * count) ** 0.5) / 2)
    first, second = pairs(classes, differences.lower.device)
    lower = differences.lower.new_zeros(len(differences.lower), classes, classes)
    upper = lower.clone()
    lower[:, first, second], upper[:, first, second] = differences.lower, differences.upper
    lower[:, second, first], upper[:, second, first] = -differences.upper, -differences.lower
    return Interval(lower, upper)
