"""Responses with a cost in epsilon per answer: the stable response, and the two of the paper.

StableResponse adds as little noise as differential privacy allows at every distance
(docs/theory/stable-response.md). CauchyResponse and LaplaceResponse are the methods of the paper
(answer 1 if label + noise > 1/2), for two classes, written as tables. If rounding a row would
make its privacy loss against the row before it exceed epsilon, the row is replaced by the smallest
one for which it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count

from ..accounting import ApproximateGuarantee
from ..accounting.arithmetic import SCALE, round_up
from ..accounting.budget import check_delta, check_epsilon
from ..relations import Neighbours
from .mechanism import PureMechanism, TableMechanism, check_classes, require_two_classes
from .table import ApproximateRows, Table, decreasing_rows, row_count


@dataclass(frozen=True)
class StableResponse(TableMechanism):
    """The least noise that (epsilon, delta) per answer allows, at every distance.

    It works for any number of classes.

    Args:
        epsilon: The epsilon of each answer.
        delta: The delta of each answer; Q answers cost Q * delta. If it is above 0, the answer is
            exact from a finite distance on.

    Raises:
        InvalidInput: If a number is out of range.

    Guarantees:
        Each answer is (epsilon, delta)-differentially private given P1 and P2, for exactly
        the integers that are sampled; no table answers the true label more often at any distance,
        except in the last of 128 bits.

    Example:
        >>> import holdfast as hf, torch
        >>> certificate = hf.Certificate(torch.tensor([1]), torch.tensor([40]), "add_remove", 2)
        >>> mechanism = hf.StableResponse(epsilon=0.5)
        >>> bool(mechanism.keep_probability(certificate) > 0.999999)
        True
        >>> mechanism.release(certificate)
        tensor([1])
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def identity(self) -> str:
        return f"stable-response/1 epsilon={self.epsilon!r} delta={self.delta!r}"

    def guarantee(
        self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE
    ) -> ApproximateGuarantee:
        return ApproximateGuarantee(self.epsilon, self.delta, Neighbours.of(neighbours))

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        check_classes(classes)
        return _table(self.epsilon, self.delta, classes, row_count(reach))


@lru_cache(maxsize=32)
def _table(epsilon: float, delta: float, classes: int, longest: int) -> Table:
    limit = ApproximateRows(epsilon, delta)
    return Table(decreasing_rows(limit.first(classes), limit.following, longest), classes)


@dataclass(frozen=True)
class CauchyResponse(PureMechanism, TableMechanism):
    """Smooth sensitivity: Cauchy noise of scale 6 exp(-epsilon k / 6) / epsilon at distance k.

    The paper's mechanism for one model and two classes. Its true privacy loss is at most
    epsilon / 6 per unit of distance.

    Args:
        epsilon: The epsilon of each answer.

    Example:
        >>> import holdfast as hf, torch
        >>> certificate = hf.Certificate(torch.tensor([1]), torch.tensor([40]), "replace", 2)
        >>> bool(hf.mechanisms.CauchyResponse(1.0).keep_probability(certificate) > 0.99)
        True
    """

    name_and_version = "cauchy-response/1"

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        require_two_classes("CauchyResponse", classes)
        return _cauchy(self.epsilon, row_count(reach))


@dataclass(frozen=True)
class LaplaceResponse(PureMechanism, TableMechanism):
    """Global sensitivity: Laplace noise of scale 1 / epsilon, whatever the distance.

    The paper's baseline for one model and two classes.

    Args:
        epsilon: The epsilon of each answer.

    Example:
        >>> import holdfast as hf
        >>> hf.mechanisms.LaplaceResponse(1.0).guarantee().epsilon
        1.0
    """

    name_and_version = "laplace-response/1"
    needs_distance = False

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        require_two_classes("LaplaceResponse", classes)
        return Table(
            (
                max(
                    _round_up_to_scale(math.exp(-self.epsilon / 2) / 2),
                    ApproximateRows(self.epsilon).first(2),
                ),
            ),
            2,
        )


@lru_cache(maxsize=32)
def _cauchy(epsilon: float, longest: int) -> Table:
    limit = ApproximateRows(epsilon)
    paper_rows = (
        _round_up_to_scale(math.atan(12 / epsilon * math.exp(-epsilon * k / 6)) / math.pi)
        for k in count()
    )
    first = max(next(paper_rows), limit.first(2))
    return Table(
        decreasing_rows(first, lambda row: max(next(paper_rows), limit.following(row)), longest), 2
    )


def _round_up_to_scale(probability: float) -> int:
    return round_up(Fraction(probability) * SCALE)
