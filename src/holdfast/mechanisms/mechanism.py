"""Mechanism: from a certificate to labels that are private. Each states its guarantee as a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..accounting import ApproximateGuarantee, Guarantee
from ..accounting.budget import check_epsilon
from ..certificates import Certificate
from ..errors import InvalidInput
from ..relations import Neighbours
from .table import SYSTEM, Entropy, Table


class Mechanism(ABC):
    """Answers each query of a certificate at random, at a known cost."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The mechanism's name, version and settings: what the ledger tells one mechanism from another by.

        The version must change whenever the same settings give other probabilities.
        """

    @abstractmethod
    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> Guarantee:
        """What one answer costs one record, under the relation that the certificate speaks about."""

    @abstractmethod
    def answer_probability(self, certificate: Certificate, labels: Int64[Tensor, " queries"]) -> Float64[Tensor, " queries"]:
        """The probability of answering each query with the label given. NOT private: for the owner, and for simulations."""

    def keep_probability(self, certificate: Certificate) -> Float64[Tensor, " queries"]:
        """The probability of answering each query's true label, the model's. NOT private."""
        return self.answer_probability(certificate, certificate.labels)

    @abstractmethod
    def draw(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> list[int]:
        """Draw a label for each query, exactly as the guarantee says. Each draw costs the guarantee: see that it is charged."""

    def release(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> Int64[Tensor, " queries"]:
        """Return labels drawn exactly as the guarantee says; each call costs the guarantee once for every query."""
        return torch.tensor(self.draw(certificate, entropy), dtype=torch.int64)


@dataclass(frozen=True)
class PureMechanism(Mechanism):
    """A mechanism whose answers cost epsilon each, and no delta."""

    epsilon: float
    name_and_version: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @property
    def identity(self) -> str:
        return f"{self.name_and_version} epsilon={self.epsilon!r}"

    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> ApproximateGuarantee:
        return ApproximateGuarantee(self.epsilon, 0.0, Neighbours.of(neighbours))


class TableMechanism(Mechanism):
    """A mechanism that is a table: the probability of the true label depends on the distance alone."""

    needs_distance = True

    @abstractmethod
    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        """The exact whole numbers that are sampled; their beginning, up to distance `reach`, if that is all that is needed."""

    def answer_probability(self, certificate: Certificate, labels: Int64[Tensor, " queries"]) -> Float64[Tensor, " queries"]:
        farthest = int(certificate.distances.max()) if len(certificate) else 0
        kept = self.table(certificate.classes, farthest).keep_probability(certificate.distances)
        return torch.where(labels == certificate.labels, kept, (1.0 - kept) / (certificate.classes - 1))

    def draw(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> list[int]:
        refuse_unsupported(type(self).__name__, certificate, self.needs_distance)
        table = self.table(certificate.classes, certificate.reach)
        pairs = zip(certificate.labels.tolist(), certificate.distances.tolist(), strict=True)
        return [table.draw(label, distance, entropy) for label, distance in pairs]


def refuse_unsupported(name: str, certificate: Certificate, needs_distance: bool) -> None:
    """Raise where a certificate cannot carry the guarantee."""
    if not isinstance(certificate, Certificate):
        raise InvalidInput(f"{name}: expected a Certificate (from certify), not a {type(certificate).__name__}")
    if certificate.neighbours is Neighbours.REMOVE:
        raise InvalidInput(
            f"{name}: the certificate is for 'remove' (unlearning), which is not enough for differential privacy; "
            "train with neighbours='add_remove' or 'replace'"
        )
    if needs_distance and not certificate.nested:
        raise InvalidInput(
            f"{name}: nested=False: these distances may jump between neighbouring data sets, so noise that depends on them leaks; "
            "release from certify() of a trained model or ensemble"
        )


def binary_only(name: str, classes: int) -> None:
    """Raise for a mechanism that is defined for two labels."""
    if classes != 2:
        raise InvalidInput(f"{name} is for 2 classes, not {classes}; use StableResponse or BudgetedResponse")


def check_classes(classes: int) -> None:
    if classes < 2:
        raise InvalidInput(f"classes={classes!r}: expected at least 2")
