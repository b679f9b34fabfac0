"""The interface of mechanisms, which turn a certificate into private labels at a stated cost."""

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
    """What every mechanism states: its identity, and what one charge costs one record.

    An `AnswerMechanism` is charged per answer; a `SparseVector` is charged per session.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """The name, version and settings by which the ledger tells mechanisms apart.

        The version must change whenever the same settings give other probabilities.
        """

    @abstractmethod
    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> Guarantee:
        """Return what one charge costs one record.

        Args:
            neighbours: The relation of the certificates that are answered.

        Returns:
            An `ApproximateGuarantee` or a `RenyiGuarantee`.
        """

    @abstractmethod
    def check(self, certificate: Certificate) -> None:
        """Raise InvalidInput if the certificate cannot support the guarantee."""


class AnswerMechanism(Mechanism):
    """A mechanism that answers each query by itself, at a known cost per answer."""

    @abstractmethod
    def answer_probability(
        self, certificate: Certificate, labels: Int64[Tensor, " queries"]
    ) -> Float64[Tensor, " queries"]:
        """Return the probability of answering each query with the given label.

        NOT private: for the owner and for simulations.

        Args:
            certificate: The certificate of the queries.
            labels: One label per query.
        """

    def keep_probability(self, certificate: Certificate) -> Float64[Tensor, " queries"]:
        """Return the probability of answering each query with its true label. NOT private.

        Args:
            certificate: The certificate of the queries.
        """
        return self.answer_probability(certificate, certificate.labels)

    @abstractmethod
    def draw(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> list[int]:
        """Draw a label per query, exactly as the guarantee states.

        Each draw costs the guarantee once; the caller is responsible for charging it.
        """

    def release(
        self, certificate: Certificate, *, entropy: Entropy = SYSTEM
    ) -> Int64[Tensor, " queries"]:
        """Return labels drawn exactly as the guarantee states.

        Each call costs the guarantee once per query; the caller is responsible for charging it.

        Args:
            certificate: The certificate of the queries, from `certify`.
            entropy: The source of randomness; the operating system, except in tests.

        Returns:
            One int64 label per query.

        Raises:
            InvalidInput: If the certificate cannot support the guarantee.
        """
        return torch.tensor(self.draw(certificate, entropy), dtype=torch.int64)


@dataclass(frozen=True)
class PureMechanism(AnswerMechanism):
    """A mechanism whose answers cost epsilon each, and no delta."""

    epsilon: float
    name_and_version: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @property
    def identity(self) -> str:
        return f"{self.name_and_version} epsilon={self.epsilon!r}"

    def guarantee(
        self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE
    ) -> ApproximateGuarantee:
        return ApproximateGuarantee(self.epsilon, 0.0, Neighbours.of(neighbours))


class TableMechanism(AnswerMechanism):
    """A mechanism given by a table of the probability of the true label per distance."""

    needs_distance = True

    @abstractmethod
    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        """Return the exact integers that are sampled.

        Args:
            classes: The number of classes.
            reach: The largest distance that is needed; None builds the whole table.

        Raises:
            InvalidInput: If the mechanism does not support so many classes.
        """

    def check(self, certificate: Certificate) -> None:
        check_certificate(type(self).__name__, certificate, self.needs_distance)

    def answer_probability(
        self, certificate: Certificate, labels: Int64[Tensor, " queries"]
    ) -> Float64[Tensor, " queries"]:
        farthest = int(certificate.distances.max()) if len(certificate) else 0
        reach = (1 << farthest.bit_length()) - 1  # few lengths, so that tables are built once
        kept = self.table(certificate.classes, reach).keep_probability(certificate.distances)
        return torch.where(
            labels == certificate.labels, kept, (1.0 - kept) / (certificate.classes - 1)
        )

    def draw(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> list[int]:
        self.check(certificate)
        table = self.table(certificate.classes, certificate.reach)
        pairs = zip(certificate.labels.tolist(), certificate.distances.tolist(), strict=True)
        return [table.draw(label, distance, entropy) for label, distance in pairs]


def check_certificate(name: str, certificate: Certificate, needs_distance: bool) -> None:
    """Raise InvalidInput if a certificate cannot support the guarantee of a mechanism."""
    if not isinstance(certificate, Certificate):
        raise InvalidInput(
            f"{name}: expected a Certificate (from certify), not a {type(certificate).__name__}"
        )
    if certificate.neighbours is Neighbours.REMOVE:
        raise InvalidInput(
            f"{name}: the certificate is for 'remove' (unlearning), "
            "which is not enough for differential privacy; "
            "train with neighbours='add_remove' or 'replace'"
        )
    if needs_distance and not certificate.nested:
        raise InvalidInput(
            f"{name}: nested=False: these distances may jump between neighbouring data sets, "
            "so noise that depends on them leaks information; "
            "release from certify() of a trained model or ensemble"
        )


def require_two_classes(name: str, classes: int) -> None:
    """Raise InvalidInput unless there are two classes, for mechanisms that support only two."""
    if classes != 2:
        raise InvalidInput(
            f"{name} is for 2 classes, not {classes}; use StableResponse or BudgetedResponse"
        )


def check_classes(classes: int) -> None:
    if classes < 2:
        raise InvalidInput(f"classes={classes!r}: expected at least 2")
