"""Sparse vector: answer any number of stable queries exactly and pay only for the unstable ones.

A secret head start is drawn once. A query is found stable with a probability that grows with its
distance beyond `threshold - head start`, and is then answered exactly; the session ends after a
given number of unstable verdicts. Both noises are one-sided, since the proof needs only one side of
the two-sided noises of the textbook (docs/theory/sparse-vector.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from ..accounting import ApproximateGuarantee
from ..accounting.arithmetic import BELOW, SCALE, ratio_below, round_down, round_up
from ..accounting.budget import check_delta, check_epsilon, decimal_at_most
from ..certificates import Certificate
from ..checks import check_integer
from ..errors import BudgetExhausted, InvalidInput
from ..relations import Neighbours
from .mechanism import Mechanism, check_certificate
from .table import SYSTEM, Entropy, decreasing_rows, inverse_cdf

UNSTABLE = -1
"""The answer to a query that was found unstable, in place of a label."""

# Far above 1 / SCALE, so that rounding does not stop the growth of the head-start probabilities.
MIN_DELTA = 1e-30
_PARTS = 64
_TARGET = 0.01


@dataclass(frozen=True)
class SparseVector(Mechanism):
    """Answers stable queries exactly until `unstable` queries have been found unstable.

    The whole session is charged when it begins, whatever the number of queries. The object itself
    is a frozen configuration; `session` draws the secret head start and begins a session.

    Args:
        epsilon: The cost of one session.
        delta: The delta of one session, at least 1e-30.
        unstable: The number of unstable verdicts that end a session.
        max_distance: The largest distance that the certificates can have (as given to `hf.train`).
            It must exceed the threshold, since otherwise hardly any query could be found stable.

    Raises:
        InvalidInput: If a setting is out of range, or the threshold is not below `max_distance`.

    Guarantees:
        A session is (epsilon, delta)-differentially private given P1 and P2, for adaptively chosen
        queries. It samples from integers in units of 1 / SCALE, with e1 + e2 <= epsilon and
        c = `unstable`:
        w[h] = P(head start = h), with w[h] <= e^e1 w[h + 1]; the last w is at most delta * SCALE.
        u[m] = P(unstable), where m = distance - threshold + head start, with
        u[m] <= e^(e2/c) u[m + 2], and u[m] = SCALE for m <= 0.
        A distance of 0 is unstable for every head start.

    Example:
        >>> import holdfast as hf, torch
        >>> mechanism = hf.SparseVector(epsilon=2.0, delta=1e-5, unstable=3, max_distance=100)
        >>> certificate = hf.Certificate(torch.tensor([1]), torch.tensor([100]), "add_remove", 2)
        >>> mechanism.session().ask(certificate)
        tensor([1])
    """

    epsilon: float
    delta: float
    unstable: int
    max_distance: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        object.__setattr__(self, "unstable", check_integer("unstable", self.unstable, 1))
        object.__setattr__(
            self, "max_distance", check_integer("max_distance", self.max_distance, 1)
        )
        if self.delta < MIN_DELTA:
            raise InvalidInput(
                f"delta={self.delta!r}: "
                f"SparseVector needs a delta above 0, at least {MIN_DELTA:g}; try delta=1e-6"
            )
        if self._approximate_threshold() > self.max_distance or self.threshold >= self.max_distance:
            raise InvalidInput(
                f"max_distance={self.max_distance}: the threshold is about "
                f"{math.ceil(self._approximate_threshold())}, so hardly any query could be found "
                "stable; train with a larger max_distance, "
                "raise epsilon or delta, or allow fewer unstable verdicts"
            )

    @property
    def identity(self) -> str:
        settings = f"unstable={self.unstable} max_distance={self.max_distance}"
        return f"sparse-vector/1 epsilon={self.epsilon!r} delta={self.delta!r} {settings}"

    def guarantee(
        self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE
    ) -> ApproximateGuarantee:
        """Return what a whole session costs one record."""
        return ApproximateGuarantee(self.epsilon, self.delta, Neighbours.of(neighbours))

    def check(self, certificate: Certificate) -> None:
        check_certificate("SparseVector", certificate, needs_distance=True)
        if certificate.reach is not None and certificate.reach < self.max_distance:
            raise InvalidInput(
                f"SparseVector: max_distance={self.max_distance}, "
                f"but this model is only certified to {certificate.reach}; "
                f"create it with max_distance={certificate.reach}, "
                "or train with a larger max_distance"
            )

    def session(self, *, entropy: Entropy = SYSTEM) -> SparseVectorSession:
        """Begin a session. It costs `guarantee()`; the caller is responsible for charging it.

        Args:
            entropy: The source of randomness; the operating system, except in tests.
        """
        return SparseVectorSession(self, entropy)

    def _approximate_threshold(self) -> float:
        return _threshold(float(self._epsilon_split[0]), self.delta)

    @cached_property
    def _epsilon_split(self) -> tuple[Decimal, Decimal]:
        """The two parts of epsilon: e1 for the head start, e2 / c for each unstable verdict.

        The split minimises, roughly, the distance from which P(unstable) is below 1%.
        """
        part = min(range(1, _PARTS), key=lambda part: self._certain_distance(part / _PARTS))
        whole_epsilon = decimal_at_most(self.epsilon)
        first = BELOW.divide(BELOW.multiply(whole_epsilon, Decimal(part)), Decimal(_PARTS))
        second = BELOW.divide(
            BELOW.multiply(whole_epsilon, Decimal(_PARTS - part)), Decimal(_PARTS * self.unstable)
        )
        return first, second

    def _certain_distance(self, part: float) -> float:
        """Return roughly the distance from which P(unstable) is below 1% if e1 = part * epsilon."""
        first, second = part * self.epsilon, (1 - part) * self.epsilon / self.unstable
        return _threshold(first, self.delta) + 2 * math.log(1 / _TARGET) / second

    @cached_property
    def head_start_weights(self) -> tuple[int, ...]:
        """The probabilities of the head starts 0, 1, 2, ..., in units of 1 / SCALE.

        The last one is delta. The others are computed from it in descending order, each as large as
        allowed; head start 0 gets the rest.
        """
        ratio = ratio_below(self._epsilon_split[0])
        rows = [round_down(Fraction(decimal_at_most(self.delta)) * SCALE)]
        left = SCALE - rows[0]
        while left > 0:
            rows.append(min(left, round_down(rows[-1] * ratio)))
            left -= rows[-1]
        return tuple(reversed(rows))

    @property
    def threshold(self) -> int:
        """The largest distance that can be found stable only because of a head start."""
        return len(self.head_start_weights) - 1

    @cached_property
    def _unstable_rows(self) -> tuple[int, ...]:
        ratio = ratio_below(self._epsilon_split[1])
        return decreasing_rows(SCALE, lambda row: round_up(row / ratio))

    def unstable_probability(self, distance: int, head: int) -> int:
        """Return P(unstable), in units of 1 / SCALE.

        It falls only at every second unit of distance, since the head start and the distance may
        each move by one.
        """
        beyond = max(0, distance - self.threshold + head)
        return self._unstable_rows[min((beyond + 1) // 2, len(self._unstable_rows) - 1)]


def _threshold(epsilon: float, delta: float) -> float:
    """Return roughly the number of head starts.

    It is the number of terms after which the geometric series that starts from delta adds up to 1.
    """
    return (
        math.log1p(math.expm1(epsilon) / delta) if epsilon < 100 else epsilon - math.log(delta)
    ) / epsilon


class SparseVectorSession:
    """One session of a `SparseVector`, with its secret head start.

    Args:
        mechanism: The configuration.
        entropy: The source of the head start and of all verdicts.
    """

    def __init__(self, mechanism: SparseVector, entropy: Entropy) -> None:
        self.mechanism = mechanism
        self.unstable_left = mechanism.unstable
        self._entropy = entropy
        self._head_start = inverse_cdf(mechanism.head_start_weights, entropy.draw())

    @property
    def ended(self) -> bool:
        """Whether the last unstable verdict has been given."""
        return self.unstable_left == 0

    def ask(self, certificate: Certificate) -> Int64[Tensor, " answered"]:
        """Return the labels of the queries in order, with UNSTABLE for those found unstable.

        Args:
            certificate: The certificate of the queries.

        Returns:
            One int64 per query; fewer than queries if the session ends among them.

        Raises:
            BudgetExhausted: If the session had already ended.
            InvalidInput: If the certificate does not fit the mechanism.
        """
        self.mechanism.check(certificate)
        if self.ended:
            raise BudgetExhausted(
                f"the session ended after {self.mechanism.unstable} unstable verdicts; nothing "
                "was answered: start a new session"
            )
        answers: list[int] = []
        for label, distance in zip(
            certificate.labels.tolist(), certificate.distances.tolist(), strict=True
        ):
            if self.ended:
                break
            answers.append(self.verdict(label, distance, self._entropy.draw()))
            self.unstable_left -= answers[-1] == UNSTABLE
        return torch.tensor(answers, dtype=torch.int64)

    def verdict(self, label: int, distance: int, number: int) -> int:
        """Return the label, or UNSTABLE, for one query and one uniform number of 128 bits.

        It is for callers that count the unstable verdicts themselves, as the ledger does; others
        use `ask`.
        """
        unstable = number < self.mechanism.unstable_probability(distance, self._head_start)
        return UNSTABLE if unstable else label
