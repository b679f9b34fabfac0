"""A mechanism's identity names every setting and a version that changes with its tables."""

from __future__ import annotations

import hashlib

import pytest

import holdfast as hf
from holdfast.mechanisms import SparseVector

BUDGET = hf.Budget(1.0, 1e-5)
STORED = {
    "stable-response/1 epsilon=0.5 delta=0.0": (lambda: hf.StableResponse(0.5), "55d45d1718cf2e89"),
    "stable-response/1 epsilon=0.5 delta=0.01": (
        lambda: hf.StableResponse(0.5, 0.01),
        "683ea6ec87f212b4",
    ),
    "budgeted-response/1 epsilon=1.0 delta=1e-05 queries=10 order=20.0": (
        lambda: hf.BudgetedResponse(BUDGET, 10, order=20.0),
        "204e579c9bca5bf2",
    ),
    "cauchy-response/1 epsilon=0.5": (
        lambda: hf.mechanisms.CauchyResponse(0.5),
        "45709fbc00f8db30",
    ),
    "laplace-response/1 epsilon=0.5": (
        lambda: hf.mechanisms.LaplaceResponse(0.5),
        "5b795f6000513906",
    ),
    "noisy-argmax/1 epsilon=0.5": (lambda: hf.mechanisms.NoisyArgmax(0.5), "92633261e403b5ee"),
    "sparse-vector/1 epsilon=5.0 delta=0.01 unstable=3 max_distance=100": (
        lambda: hf.SparseVector(5.0, 0.01, 3, 100),
        "c59aa7e060d9d641",
    ),
}


def probabilities(mechanism: object) -> str:
    """Return a digest of the whole numbers that a mechanism samples from."""
    if isinstance(mechanism, SparseVector):
        rows = [
            mechanism.head_start_weights,
            [mechanism.unstable_probability(distance, 2) for distance in range(100)],
        ]
    elif isinstance(mechanism, hf.mechanisms.NoisyArgmax):
        rows = [mechanism.table([zeros, 7 - zeros]) for zeros in range(8)]
    else:
        rows = [mechanism.table(2, 60).rows]  # type: ignore[attr-defined]
    return hashlib.sha256(
        repr([[int(number) for number in row] for row in rows]).encode()
    ).hexdigest()[:16]


@pytest.mark.parametrize("identity", STORED)
def test_an_identity_stands_for_its_probabilities(identity: str) -> None:
    """The probabilities behind an identity do not change.

    If a digest must change, change the version in the mechanism's identity and both values here.
    """
    make, stored = STORED[identity]
    assert make().identity == identity
    assert probabilities(make()) == stored


def test_settings_that_differ_have_identities_that_differ() -> None:
    mechanisms = [
        hf.StableResponse(0.1),
        hf.StableResponse(0.1 + 2**-56),
        hf.StableResponse(0.1, 1e-9),
        hf.mechanisms.LaplaceResponse(0.1),
        hf.BudgetedResponse(BUDGET, 10),
        hf.BudgetedResponse(BUDGET, 11),
        hf.BudgetedResponse(BUDGET, 10, order=30.0),
        hf.SparseVector(5.0, 0.01, 3, 100),
        hf.SparseVector(5.0, 0.01, 3, 101),
        hf.SparseVector(5.0, 0.01, 4, 100),
    ]
    assert len({mechanism.identity for mechanism in mechanisms}) == len(mechanisms)
