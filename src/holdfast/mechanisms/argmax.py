"""Noisy argmax over the votes of an ensemble, as in PATE: votes + Laplace(2 / epsilon).

The paper compares its ensembles with this mechanism. The probabilities of all labels are computed
in closed form and rounded to integers in units of 1 / SCALE; no noise is drawn. Rounding alone
would not be private, so the noise is slightly larger than the paper's and every label gets a small
minimum probability; together they outweigh the rounding (docs/theory/noisy-argmax.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..accounting.arithmetic import SCALE
from ..certificates import Certificate
from ..errors import InvalidInput
from .mechanism import PureMechanism, check_certificate
from .table import SYSTEM, Entropy, inverse_cdf

PROBABILITY_FLOOR = Decimal(2) ** -64  # probability that is divided equally among all labels
EPSILON_RESERVE = Decimal(2) ** -32  # fraction of epsilon that is reserved for the rounding
MOST_CLASSES = 16  # the closed form takes classes^4 steps
_PRECISE = Context(prec=80, Emin=MIN_EMIN, Emax=MAX_EMAX)


@dataclass(frozen=True)
class NoisyArgmax(PureMechanism):
    """The label with the most votes after adding Laplace noise of scale 2 / epsilon to every count.

    The paper's mechanism for ensembles. A record belongs to one member of the ensemble, so a move
    changes at most one vote. Distances are not used.

    Args:
        epsilon: The epsilon of each answer, at least 1e-6.

    Raises:
        InvalidInput: If epsilon is out of range.

    Example:
        >>> import holdfast as hf
        >>> table = hf.mechanisms.NoisyArgmax(1.0).table([20, 5])
        >>> table[0] > table[1]
        True
    """

    name_and_version = "noisy-argmax/1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if Decimal(self.epsilon) * EPSILON_RESERVE < 4 * MOST_CLASSES**2 * PROBABILITY_FLOOR:
            raise InvalidInput(
                f"epsilon={self.epsilon!r}: too small for 128-bit tables; expected at least 1e-6"
            )

    def table(self, votes: Sequence[int]) -> tuple[int, ...]:
        """Return the probabilities of all labels given the votes, as integers that sum to SCALE."""
        if not 2 <= len(votes) <= MOST_CLASSES:
            raise InvalidInput(
                f"NoisyArgmax is for 2 to {MOST_CLASSES} classes, not {len(votes)}; "
                "use StableResponse"
            )
        with localcontext(_PRECISE):
            chances = win_probabilities(list(votes), Decimal(self.epsilon) * (1 - EPSILON_RESERVE))
            floor = PROBABILITY_FLOOR / len(votes)
            rows = [int((chance * (1 - PROBABILITY_FLOOR) + floor) * SCALE) for chance in chances]
        rows[0] += SCALE - sum(rows)
        return tuple(rows)

    def check(self, certificate: Certificate) -> None:
        check_certificate("NoisyArgmax", certificate, needs_distance=False)

    def answer_probability(
        self, certificate: Certificate, labels: Int64[Tensor, " queries"]
    ) -> Float64[Tensor, " queries"]:
        votes = _votes(certificate)
        known = {tuple(row): self.table(row) for row in votes}
        chances = [
            known[tuple(row)][label] / SCALE
            for row, label in zip(votes, labels.tolist(), strict=True)
        ]
        return torch.tensor(chances, dtype=torch.float64)

    def draw(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> list[int]:
        """Draw a label per query; the time taken depends slightly on the votes."""
        self.check(certificate)
        return [inverse_cdf(self.table(row), entropy.draw()) for row in _votes(certificate)]


def win_probabilities(votes: Sequence[int], epsilon: Decimal) -> list[Decimal]:
    """Return the probability that each label has the most votes after the noise.

    The noise is Laplace of scale 2 / epsilon. The number of steps does not depend on how the votes
    are distributed, but the time per step depends on the numbers involved.
    """
    powers = _Powers(epsilon, sum(votes) * len(votes))
    # Ties are broken by label, so that every rank occurs once.
    ranks = sorted(range(len(votes)), key=lambda i: (-votes[i], i))
    return [
        _win_probability(
            [own - other for j, other in enumerate(votes) if j != i],
            len(votes) - 1 - ranks.index(i),
            powers,
        )
        for i, own in enumerate(votes)
    ]


class _Powers:
    """A lookup table of e^(n epsilon / 2) for integers n, all with the same number of digits."""

    def __init__(self, epsilon: Decimal, most: int) -> None:
        self._known, self._most = _powers(epsilon, most), most
        self.unit = epsilon / 2

    def __getitem__(self, exponent: int) -> Decimal:
        return self._known[exponent + self._most]


@lru_cache(maxsize=4)
def _powers(epsilon: Decimal, most: int) -> tuple[Decimal, ...]:
    digits = Decimal(1).scaleb(-_PRECISE.prec + 1)
    return tuple(
        (n * epsilon / 2).exp() if n else Decimal(1).quantize(digits)
        for n in range(-most, most + 1)
    )


def _win_probability(leads: Sequence[int], positive_leads: int, powers: _Powers) -> Decimal:
    """Return P(X + lead_j > X_j for every j), where X and X_j are Laplace of scale 2 / epsilon.

    `positive_leads` counts the positive leads, and those zero leads that rank below the label.

    Between the points at which a lead is just lost, the density and the distribution functions are
    of the form c exp(y), c exp(-y) or 1 - c exp(-y). Their product is a polynomial in exp(y) and
    exp(-y), which is integrated term by term. Coinciding points bound a piece of zero width.
    """
    cuts = sorted([0, *(-lead for lead in leads)])
    falling = sorted(leads, reverse=True)  # in the order of their cuts, from left to right
    total = Decimal(0)
    for piece in range(len(cuts) + 1):
        left, right = cuts[piece - 1] if piece else None, cuts[piece] if piece < len(cuts) else None
        rising = piece <= positive_leads
        terms = {1 if rising else -1: Decimal("0.5")}
        behind = piece - (not rising)  # number of leads whose cut lies to the left
        for number, lead in enumerate(falling):
            if number < behind:
                terms = _times_one_minus_exp(terms, powers[-lead] / 2)
            else:
                terms = {power + 1: value * powers[lead] / 2 for power, value in terms.items()}
        total += sum(
            (_integral(value, power, left, right, powers) for power, value in terms.items()),
            Decimal(0),
        )
    return total


def _times_one_minus_exp(terms: dict[int, Decimal], share: Decimal) -> dict[int, Decimal]:
    """Return terms * (1 - share * exp(-y))."""
    result = dict(terms)
    for power, value in terms.items():
        result[power - 1] = result.get(power - 1, Decimal(0)) - value * share
    return result


def _integral(
    value: Decimal, power: int, left: int | None, right: int | None, powers: _Powers
) -> Decimal:
    """Return the integral of value * exp(power * y) between two ends.

    The ends are numbers of votes, with y = votes * epsilon / 2. None is an infinite end, at which
    the term vanishes.
    """
    if power == 0:
        assert left is not None
        assert right is not None
        return value * (right - left) * powers.unit
    ends = [Decimal(0) if end is None else powers[power * end] for end in (left, right)]
    return value * (ends[1] - ends[0]) / power


def _votes(certificate: Certificate) -> list[list[int]]:
    if certificate.votes is None:
        raise InvalidInput(
            "NoisyArgmax needs votes, "
            "and this certificate has none: train an ensemble with hf.train_ensemble"
        )
    votes: list[list[int]] = certificate.votes.tolist()
    return votes
