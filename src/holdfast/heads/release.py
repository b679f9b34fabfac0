"""Releases of heads: noise on a public grid, charged once to the ledger.

Weights are rounded to whole numbers of grid units before noise is added, so nothing that is
released depends on how a computer rounds sums of weights and noise (docs/theory/release.md).
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

from ..accounting import Budget
from ..accounting.arithmetic import round_up
from ..accounting.renyi import (
    RENYI_UNIT,
    ZERO,
    Amount,
    gaussian_divergence,
    least_scale_for_budget,
    least_scale_for_divergence,
    require_delta,
)
from ..arrays import Floats
from ..errors import InvalidInput, UnsoundBounds
from ..ledger import Ledger
from ..ledger.accounts import Account
from ..ledger.entries import RELEASE
from ..ledger.transaction import Transaction
from ..mechanisms.table import SYSTEM, Entropy, draw_discrete_gaussian
from ..models import check_signature
from .certified import CertifiedHead
from .released import ReleasedHead, ReleaseRecord
from .schemes import Softmax

_FINENESS = 64  # the sensitivity is at least 2^64 grid units, so that the grid costs nothing


@dataclass(frozen=True)
class Grid:
    """A grid of spacing 2^-exponent for a number of weights, and the sensitivity on it.

    Args:
        exponent: The binary exponent of the spacing.
        entries: The number of weights.
        sensitivity: The largest Euclidean distance, in grid units, between the rounded weights of
            neighbouring data sets.
    """

    exponent: int
    entries: int
    sensitivity: int

    @classmethod
    def of(cls, sensitivity: float, entries: int) -> Grid:
        """Return the grid for weights of which one move changes `entries` by `sensitivity`.

        Guarantees:
            Only public numbers are used. The result's sensitivity counts the rounding to the grid:
            half a unit per entry, in both data sets.
        """
        if not 0.0 < sensitivity < math.inf:
            raise UnsoundBounds(
                f"sensitivity={sensitivity!r}: expected a positive finite number; "
                "train the head again"
            )
        root = math.isqrt(entries - 1) + 1  # at least the square root
        exponent = _FINENESS + root.bit_length() - math.frexp(sensitivity)[1]
        exact = Fraction(sensitivity) * Fraction(2) ** exponent
        return cls(exponent, entries, math.ceil(exact) + root)

    @property
    def spacing(self) -> Fraction:
        return Fraction(2) ** -self.exponent

    def add_noise(self, weights: Floats, scale: int, entropy: Entropy) -> Floats:
        """Return the weights, rounded to the grid, plus a discrete Gaussian of `scale` grid units.

        Guarantees:
            All noise is drawn before the weights are looked at, and sums are exact. The result is
            the sum rounded to float64, so it is a function of the sum alone.
        """
        if weights.size != self.entries:
            raise UnsoundBounds(f"{weights.size} weights on a grid for {self.entries}")
        noise = [draw_discrete_gaussian(scale, entropy) for _ in range(self.entries)]
        sums = [
            round(Fraction(weight) / self.spacing) + number
            for weight, number in zip(weights.ravel().tolist(), noise, strict=True)
        ]
        return np.array([float(number * self.spacing) for number in sums]).reshape(weights.shape)

    def as_float(self, units: int) -> float:
        """Return a length in grid units as a float."""
        return float(units * self.spacing)


_ANALYST = "owner"

_LOG = logging.getLogger(__name__)


def release_head(
    head: CertifiedHead,
    ledger: Ledger,
    *,
    budget: Budget | None = None,
    entropy: Entropy = SYSTEM,
    require_signature: bool = False,
) -> ReleasedHead:
    """Release a head: add noise to its weights, charge the budget, and return an ordinary model.

    The released head answers any number of queries at no further cost. One move changes the weights
    by at most a public distance, so noise of a public size protects every record
    (docs/theory/release.md).

    Args:
        head: What `hf.train_linear` returned for two classes, or for several with
            `multiclass="softmax"`.
        ledger: The ledger that holds the budget of the head's data set, which should have been
            created with `release=True`.
        budget: The epsilon and delta of this release by itself; by default it gets all that is left
            of the data set's budget. A release that takes an untouched budget whole has 6 to 10%
            less noise than one that shares it.
        entropy: The source of randomness; the operating system, except in tests.
        require_signature: Whether to refuse a head that was not saved with `save(path,
            ledger=ledger)` and loaded from that file. A signature of this ledger is checked in any
            case.

    Returns:
        The released head. If the same head was released with the same `budget` before, the recorded
        release is returned, free of charge.

    Raises:
        BudgetExhausted: If the budget does not cover it; nothing is released or charged.
        InvalidInput: If the head cannot be released, or the budget is not meant for a release.
        DamagedFile: If the head is not the one that was signed.
        TamperedLedger: If the ledger is not what was written to it.
        LedgerUnavailable: If the ledger cannot be reached.

    Guarantees:
        By itself, the release is differentially private at `budget`, and together with all other
        answers and releases of the data set at the data set's budget. The charge is on disk before
        the released head is returned, together with the weights, so that neither is lost.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 500), torch.tensor([0, 1] * 500)
        >>> recipe = hf.LinearRecipe(batch_size=1000, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, dataset="w", progress=False)
        >>> ledger = hf.Ledger("sqlite:///release.db", home="keys")
        >>> status = ledger.create_budget("w", hf.Budget(1.0, 1e-6), release=True)
        >>> print(hf.release_head(head, ledger).guarantee)
        (1, 1e-06)-differential privacy per record, add_remove
    """
    _check(head, ledger, budget)
    check_signature(head, ledger, require_signature)
    question = ledger.hasher()(b"release", _identity(head, budget).encode()).hex()
    about = None
    while about is None:  # repeat if somebody else spent a part of the budget in the meantime
        found = ledger.transact(partial(_recorded_or_noise, head, question, budget))
        if isinstance(found, ReleaseNoise):
            drawn = found.grid.add_noise(head.weights.numpy(), found.scale, entropy)
            about = ledger.transact(partial(_charge, head, question, budget, found, drawn))
        else:
            about = found
    _LOG.info("%r: a head was released, or a recorded release returned", head.dataset)
    return _released(head, about)


def _identity(head: CertifiedHead, budget: Budget | None) -> str:
    """Return what the ledger tells releases apart by: all that noise and statement depend on."""
    return json.dumps(
        {
            "run": head.run_id,
            "budget": None if budget is None else [budget.epsilon, budget.delta],
            "neighbours": head.neighbours.value,
            "recipe": head.recipe.as_dict(),
            "scheme": [head.scheme.name, *head.weights.shape],
        },
        sort_keys=True,
    )


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise of a release, and what it costs; all of it is public.

    `price` is charged now. `beyond` is what the release would cost beyond that if the budget were
    raised: a release that takes a budget whole is cheaper alone than when charges are added up.
    """

    grid: Grid
    scale: int
    price: Amount
    beyond: Amount
    record: ReleaseRecord


def _check(head: CertifiedHead, ledger: Ledger, budget: Budget | None) -> None:
    if not isinstance(head, CertifiedHead):
        raise InvalidInput(
            f"head is a {type(head).__name__}: expected one linear head, as hf.train_linear "
            "returns it with members=1; networks and ensembles cannot be released, since noise for "
            "all their weights would drown them: ask them one query at a time"
        )
    if not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected an hf.Ledger")
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(
            f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta), or None"
        )
    if head.part is not None:
        raise InvalidInput("the head is a member of an ensemble; train it with members=1")
    if head.classes > 2 and not isinstance(head.scheme, Softmax):
        raise InvalidInput(
            f"multiclass={head.scheme.name!r}: the weights of several classes are released "
            "together, which needs least noise with multiclass='softmax'; train the head with that"
        )


def _recorded_or_noise(
    head: CertifiedHead, question: str, budget: Budget | None, transaction: Transaction
) -> dict[str, Any] | ReleaseNoise:
    """Return the recorded release, or the noise that the budget pays for."""
    account = transaction.books.account(head.dataset)
    recorded = transaction.release(account, question)
    return _noise(head, account, budget, transaction) if recorded is None else recorded


def _charge(
    head: CertifiedHead,
    question: str,
    budget: Budget | None,
    noise: ReleaseNoise,
    drawn: Floats,
    transaction: Transaction,
) -> dict[str, Any] | None:
    """Charge and record a release; return None if its noise is no longer what the budget pays."""
    account = transaction.books.account(head.dataset)
    recorded = transaction.release(account, question)
    if recorded is not None:
        return recorded
    if _noise(head, account, budget, transaction) != noise:
        return None
    transaction.add(
        RELEASE,
        account.name,
        _ANALYST,
        noise.price,
        model=head.run_id,
        question=question,
        about=_to_json(noise, drawn),
    )
    return transaction.release(account, question)


def _noise(
    head: CertifiedHead, account: Account, budget: Budget | None, transaction: Transaction
) -> ReleaseNoise:
    """Return the least noise that the budget, or what is left of it, pays for.

    Guarantees:
        Only public numbers are used: those of the recipe, and the state of the budget.
    """
    terms = account.terms
    if head.neighbours is not terms.neighbours:
        raise InvalidInput(
            f"the head is certified per {head.neighbours.unit}, under {head.neighbours.value!r}, "
            f"but the budget of {account.name!r} is counted per {terms.neighbours.unit}, under "
            f"{terms.neighbours.value!r}; train under the same relation"
        )
    require_delta(terms.budget if budget is None else budget)
    require_delta(terms.budget)
    transaction.require_affordable(account, ZERO, _ANALYST, "a release")  # or it is closed
    grid = Grid.of(head.ball.sensitivity, head.weights.numel())
    left = account.remaining(_ANALYST)
    whole = account.untouched and left == terms.limit and budget in (None, terms.budget)
    if not whole and not terms.release:
        raise InvalidInput(
            f"the budget of {account.name!r} was granted for answers, and a part of it is spent: "
            "the rest would pay for a release only with far more noise than necessary. It stays a "
            "budget for answers; for other data, decide before the first answer (`holdfast plan`, "
            "then `holdfast budget create --release`)"
        )
    own = terms.budget if whole else budget
    if own is None:
        transaction.require_affordable(account, Amount(1), _ANALYST, "a release")
        assert terms.order is not None
        limit = left.loss * RENYI_UNIT
        scale = least_scale_for_divergence(grid.sensitivity, terms.order, limit)
    else:
        scale = least_scale_for_budget(grid.sensitivity, own, grid.entries)
    price, beyond = Amount(round_up(_divergence(grid, scale, account) / RENYI_UNIT)), ZERO
    if whole and not price.within(left):
        price, beyond = left, Amount(price.loss - left.loss)
    transaction.require_affordable(account, price, _ANALYST, "this release")
    return ReleaseNoise(grid, scale, price, beyond, _record(grid, scale, account, own))


def _divergence(grid: Grid, scale: int, account: Account) -> Fraction:
    assert account.terms.order is not None
    return gaussian_divergence(grid.sensitivity, scale, account.terms.order)


def _record(grid: Grid, scale: int, account: Account, budget: Budget | None) -> ReleaseRecord:
    terms = account.terms
    assert terms.order is not None
    return ReleaseRecord(
        budget=budget,
        total=terms.budget,
        order=terms.order,
        cost=float(_divergence(grid, scale, account)),
        noise=grid.as_float(scale),
        sensitivity=grid.as_float(grid.sensitivity),
        exponent=grid.exponent,
        released=ReleaseRecord.today(),
    )


def _to_json(noise: ReleaseNoise, drawn: Floats) -> str:
    """Return what the ledger keeps of a release: all that rebuilding it needs besides the head."""
    about = {
        "record": noise.record.as_json(),
        "beyond": str(noise.beyond.loss),
        "weights": drawn.astype("<f8").tobytes().hex(),
    }
    return json.dumps(about)


def _released(head: CertifiedHead, about: dict[str, Any]) -> ReleasedHead:
    weights = np.frombuffer(bytes.fromhex(about["weights"]), "<f8").reshape(head.weights.shape)
    return ReleasedHead(
        weights=torch.from_numpy(weights.astype(np.float64)),
        scheme=head.scheme,
        inputs=head.inputs.without_history(),
        recipe=head.recipe,
        neighbours=head.neighbours,
        dataset=head.dataset,
        run_id=head.run_id,
        release=ReleaseRecord.from_json(about["record"]),
        max_records_per_person=head.max_records_per_person,
        names=head.names,
        preprocessing=head.preprocessing,
    )
