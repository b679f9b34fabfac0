"""Schemes of heads for several classes, and what a head sees of a record.

One head per pair of classes moves least: a record changes a pair's score by one unit only. One head
per class, trained against the rest or by softmax, compares differences of two scores, which one
record changes by up to twice as much (docs/theory/linear-heads.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import Floats, Integers
from ..errors import InvalidInput
from ..layers import Front
from ..workers import ProgressCallback
from .ball import FARTHEST, OFFSET_LIMIT, HeadLoss, curvature
from .loops import add_head_gradients, add_softmax_gradients, scaled_rows
from .recipe import MOST_CLASSES_IN_PAIRS, LinearRecipe

_SIGMOID_ERROR = 10.0  # roundings in a residual, given its score


@dataclass(frozen=True)
class Scheme(ABC):
    """How several classes are told apart by linear heads."""

    classes: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the scheme, as in `hf.train_linear(multiclass=...)`."""

    @property
    @abstractmethod
    def heads_of_class(self) -> Integers:
        """The heads that a record of each class trains: (classes, heads per class)."""

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(self.heads_of_class.max()) + 1

    def batch_size(self, recipe: LinearRecipe) -> float:
        """Return the public normaliser of a head."""
        assert recipe.batch_size is not None
        return float(recipe.batch_size)

    @abstractmethod
    def loss(self, recipe: LinearRecipe) -> HeadLoss:
        """Return what bounds the effect of one record."""

    @abstractmethod
    def add_gradients(
        self, recipe: LinearRecipe, records: Any, weights: Floats, span: range, partial: Floats
    ) -> None:
        """Write the gradient sums of the blocks in `span` to `partial`, per block and head."""

    def offsets(self, logits: Floats) -> Floats:
        """Return the offset of every head, given public logits, clamped to a public limit."""
        return np.clip(logits, -OFFSET_LIMIT, OFFSET_LIMIT)

    @abstractmethod
    def certify(self, scores: Floats, moves: Floats) -> tuple[Integers, Integers]:
        """Return labels and stable distances.

        Args:
            scores: The score of every head: (queries, heads).
            moves: The most by which one move changes each compared score: (queries, heads), or
                (queries, 1) for differences.

        Guarantees:
            P1 and P2 of `hf.Certificate`, if scores of neighbouring data sets differ by less than
            `moves`.
        """


@dataclass(frozen=True)
class Pairs(Scheme):
    """One head per pair of classes, trained on the records of the two.

    The head of the pair i < j is positive for j. A label is the class that wins all its pairs.
    """

    @property
    def name(self) -> str:
        return "pairs"

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        return list(combinations(range(self.classes), 2))

    @cached_property
    def heads_of_class(self) -> Integers:
        return np.array(
            [
                [head for head, pair in enumerate(self._pairs) if own in pair]
                for own in range(self.classes)
            ]
        )

    @cached_property
    def targets(self) -> Floats:
        """The target of each head that a record of a class trains: (classes, classes - 1)."""
        return np.array(
            [
                [float(self._pairs[head][1] == own) for head in self.heads_of_class[own]]
                for own in range(self.classes)
            ]
        )

    def batch_size(self, recipe: LinearRecipe) -> float:
        return max(1.0, super().batch_size(recipe) * 2.0 / self.classes)

    def loss(self, recipe: LinearRecipe) -> HeadLoss:
        bend = curvature(recipe.clip, recipe.radius)
        return HeadLoss(recipe.clip, recipe.clip, bend, 0.25, _SIGMOID_ERROR, 1)

    def add_gradients(
        self, recipe: LinearRecipe, records: Any, weights: Floats, span: range, partial: Floats
    ) -> None:
        clips = np.full_like(self.targets, recipe.clip)
        _add_logistic(self, records, clips, weights, span, partial)

    def offsets(self, logits: Floats) -> Floats:
        if logits.shape[1] == 1:
            return super().offsets(logits)
        first, second = np.array(self._pairs).T
        return super().offsets(logits[:, second] - logits[:, first])

    def certify(self, scores: Floats, moves: Floats) -> tuple[Integers, Integers]:
        first, second = np.array(self._pairs).T
        distances = stable_moves(np.abs(scores), moves)
        wins = np.zeros((len(scores), self.classes), dtype=np.int64)
        least = np.full((len(scores), self.classes), FARTHEST, dtype=np.int64)
        for head, (low, high) in enumerate(zip(first, second, strict=True)):
            wins[:, low] += scores[:, head] < 0.0
            wins[:, high] += scores[:, head] > 0.0
            least[:, low] = np.minimum(least[:, low], distances[:, head])
            least[:, high] = np.minimum(least[:, high], distances[:, head])
        # If no class wins all its pairs, no neighbour has a distance above 0, and any label is
        # sound: here, the class with the most wins.
        labels = wins.argmax(1)
        rows = np.arange(len(scores))
        won = wins[rows, labels] == self.classes - 1
        return labels, np.where(won, least[rows, labels], 0)


@dataclass(frozen=True)
class ClassHeads(Scheme):
    """One head per class; a label is the class with the largest score."""

    @cached_property
    def heads_of_class(self) -> Integers:
        return np.tile(np.arange(self.classes), (self.classes, 1))

    def certify(self, scores: Floats, moves: Floats) -> tuple[Integers, Integers]:
        ordered = np.sort(scores, axis=1)
        lead = ordered[:, -1] - ordered[:, -2]
        return scores.argmax(1), stable_moves(lead, moves[:, 0])


@dataclass(frozen=True)
class OneVersusRest(ClassHeads):
    """One logistic head per class; records of other classes are clipped harder than its own."""

    @property
    def name(self) -> str:
        return "one_vs_rest"

    @cached_property
    def targets(self) -> Floats:
        """The target of each head that a record of a class trains: (classes, classes)."""
        return np.eye(self.classes)

    def other_clip(self, recipe: LinearRecipe) -> float:
        """Return the clip of a record in the heads of other classes.

        There are about classes - 1 such records for each one of the head's own class.
        """
        return recipe.clip / math.sqrt(self.classes - 1)

    def loss(self, recipe: LinearRecipe) -> HeadLoss:
        bend = curvature(recipe.clip, recipe.radius)
        moved = recipe.clip + self.other_clip(recipe)
        return HeadLoss(recipe.clip, moved, bend, 0.25, _SIGMOID_ERROR, 2)

    def add_gradients(
        self, recipe: LinearRecipe, records: Any, weights: Floats, span: range, partial: Floats
    ) -> None:
        clips = np.where(self.targets == 1.0, recipe.clip, self.other_clip(recipe))
        _add_logistic(self, records, clips, weights, span, partial)


@dataclass(frozen=True)
class Softmax(ClassHeads):
    """One head per class, trained by a softmax whose gradient is clipped as a whole."""

    @property
    def name(self) -> str:
        return "softmax"

    def loss(self, recipe: LinearRecipe) -> HeadLoss:
        slope, evaluation = math.sqrt(self.classes) / 2, 4.0 * (self.classes + 16)
        gradient = math.sqrt(2.0) * recipe.clip
        return HeadLoss(gradient, 2.0 * recipe.clip, recipe.radius**2 / 2, slope, evaluation, 2)

    def add_gradients(
        self, recipe: LinearRecipe, records: Any, weights: Floats, span: range, partial: Floats
    ) -> None:
        add_softmax_gradients(
            records.columns,
            records.norms,
            records.shares,
            records.offsets,
            records.blocks,
            recipe.clip,
            weights,
            span.start,
            span.stop,
            partial,
        )


def _add_logistic(
    scheme: Pairs | OneVersusRest,
    records: Any,
    clips: Floats,
    weights: Floats,
    span: range,
    partial: Floats,
) -> None:
    add_head_gradients(
        records.columns,
        records.norms,
        records.shares,
        records.offsets,
        records.blocks,
        scheme.heads_of_class,
        scheme.targets,
        clips,
        weights,
        span.start,
        span.stop,
        partial,
    )


def stable_moves(lead: Floats, moves: Floats) -> Integers:
    """Return the largest number of moves that cannot take a lead to 0, at most FARTHEST.

    A lead of 0 has distance 0, even if no move changes it.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = np.ceil(np.where(lead > 0.0, lead / moves, 0.0)) - 1.0
    return np.clip(quotient, 0.0, float(FARTHEST)).astype(np.int64)


SCHEMES: dict[str, Callable[[int], Scheme]] = {
    "pairs": Pairs,
    "softmax": Softmax,
    "one_vs_rest": OneVersusRest,
}


def make_scheme(multiclass: str, classes: int) -> Scheme:
    """Return the scheme; more than MOST_CLASSES_IN_PAIRS classes use one head per class."""
    if multiclass not in SCHEMES:
        names = ", ".join(repr(name) for name in SCHEMES)
        raise InvalidInput(f"multiclass={multiclass!r}: expected one of {names}")
    if classes == 2:
        return Pairs(2)
    if multiclass == "pairs" and classes > MOST_CLASSES_IN_PAIRS:
        return OneVersusRest(classes)
    return SCHEMES[multiclass](classes)


BIAS = 0.1
"""The constant feature that stands for the bias, beside features with a norm of about 1."""


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """The public functions of a record that a head is trained on.

    Guarantees:
        Features, norm and offsets of a record depend only on that record and on public numbers:
        `Front` and the loops compute each record by itself.
    """

    record_shape: tuple[int, ...]
    encoder: Front | None
    offset: Front | None
    scale: float
    radius: float

    @classmethod
    def of(
        cls,
        record_shape: tuple[int, ...],
        encoder: Any,
        offset: Any,
        classes: int,
        scale: float | None,
        radius: float,
    ) -> HeadInputs:
        """Check the public modules, or None; `scale` None is 1 / sqrt(number of features)."""
        front = None if encoder is None else Front.of_module("encoder", encoder, record_shape)
        base = None if offset is None else Front.of_module("offset", offset, record_shape)
        wanted = {(classes,), (1,)} if classes == 2 else {(classes,)}
        if base is not None and base.shapes[-1] not in wanted:
            raise InvalidInput(
                f"offset gives {base.shapes[-1]} numbers per record: expected {classes} logits"
                + (", or one" if classes == 2 else "")
            )
        width = math.prod(record_shape if front is None else front.shapes[-1])
        return cls(
            record_shape, front, base, 1.0 / math.sqrt(width) if scale is None else scale, radius
        )

    def without_history(self) -> HeadInputs:
        """Return the same functions, with modules that no record has passed."""
        encoder, offset = (
            None if front is None else front.without_history()
            for front in (self.encoder, self.offset)
        )
        return replace(self, encoder=encoder, offset=offset)

    @property
    def width(self) -> int:
        """The number of weights per head: features and bias."""
        shape = self.record_shape if self.encoder is None else self.encoder.shapes[-1]
        return math.prod(shape) + 1

    def __call__(
        self, records: Tensor, scheme: Scheme, on_progress: ProgressCallback | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Return the features, their norms, and the offset of every head."""
        encoded = records if self.encoder is None else self.encoder(records, on_progress)
        rows = encoded.reshape(len(records), self.width - 1).double().contiguous().numpy()
        features, norms = scaled_rows(rows, self.scale, BIAS, self.radius)
        if self.offset is None:
            return features, norms, np.zeros((len(records), scheme.heads))
        logits = torch.nan_to_num(self.offset(records).double(), nan=0.0).numpy()
        offsets = scheme.offsets(logits)
        assert offsets.shape == (len(records), scheme.heads)
        return features, norms, offsets
