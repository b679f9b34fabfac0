"""Mechanisms refuse certificates that do not support their guarantee, and invalid settings."""

from __future__ import annotations

import pytest
import torch

import holdfast as hf


def certificate(
    relation: str = "add_remove",
    classes: int = 2,
    nested: bool = True,
    votes: torch.Tensor | None = None,
) -> hf.Certificate:
    return hf.Certificate(
        torch.tensor([1, 0]), torch.tensor([3, 0]), relation, classes, nested=nested, votes=votes
    )


VOTES = torch.tensor([[1, 4], [5, 0]])
ALL = [
    hf.StableResponse(0.5),
    hf.StableResponse(0.5, 1e-6),
    hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 10),
    hf.mechanisms.CauchyResponse(0.5),
    hf.mechanisms.LaplaceResponse(0.5),
    hf.mechanisms.NoisyArgmax(0.5),
]


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: type(m).__name__)
def test_the_relation_remove_is_refused(mechanism) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="not enough for differential privacy"):
        mechanism.release(certificate("remove", votes=VOTES))
    for relation in ("add_remove", "replace"):
        assert mechanism.release(certificate(relation, votes=VOTES)).shape == (2,)


@pytest.mark.parametrize("mechanism", ALL[:4], ids=lambda m: type(m).__name__)
def test_distances_that_may_jump_are_refused(mechanism) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="nested=False"):
        mechanism.release(certificate(nested=False))
    # The owner may still compare probabilities.
    assert mechanism.keep_probability(certificate(nested=False)).shape == (2,)


def test_mechanisms_that_do_not_use_distances_take_any() -> None:
    assert hf.mechanisms.LaplaceResponse(1.0).release(certificate(nested=False)).shape == (2,)
    assert hf.mechanisms.NoisyArgmax(1.0).release(certificate(nested=False, votes=VOTES)).shape == (
        2,
    )


def test_missing_votes_are_refused() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="train an ensemble"):
        hf.mechanisms.NoisyArgmax(1.0).release(certificate())
    with pytest.raises(hf.errors.InvalidInput, match="votes are"):
        certificate(votes=torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize(
    "mechanism", [hf.mechanisms.CauchyResponse(1.0), hf.mechanisms.LaplaceResponse(1.0)]
)
def test_binary_mechanisms_refuse_more_classes(mechanism) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="is for 2 classes, not 3; use StableResponse"):
        mechanism.release(certificate(classes=3))


@pytest.mark.parametrize(
    "epsilon", [0.0, -1.0, float("nan"), float("inf"), "1", True, None, 1e9, 10**400]
)
@pytest.mark.parametrize(
    "make",
    [
        hf.StableResponse,
        hf.mechanisms.CauchyResponse,
        hf.mechanisms.LaplaceResponse,
        hf.mechanisms.NoisyArgmax,
        hf.Budget,
    ],
)
def test_senseless_epsilons_are_refused(make, epsilon) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="epsilon="):
        make(epsilon)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, float("nan"), "0", True])
@pytest.mark.parametrize("make", [hf.StableResponse, hf.Budget])
def test_senseless_deltas_are_refused(make, delta) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="delta="):
        make(1.0, delta)


def test_budgets_that_cannot_be_spent_are_refused() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="use StableResponse"):
        hf.BudgetedResponse(hf.Budget(1.0), 10)
    with pytest.raises(hf.errors.InvalidInput, match="no Rényi budget at order"):
        hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 10, order=1.01)
    with pytest.raises(hf.errors.InvalidInput, match="expected hf.Budget"):
        hf.BudgetedResponse(1.0, 10)
    with pytest.raises(hf.errors.InvalidInput, match="queries=0"):
        hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 0)
    for order in (1.0, "abc", [2], 10**400, float("nan")):
        with pytest.raises(hf.errors.InvalidInput, match="order="):
            hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 10, order=order)
    with pytest.raises(hf.errors.InvalidInput, match="is for 1 in all"):
        hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 1).release(certificate())
    with pytest.raises(hf.errors.InvalidInput, match="epsilon=1e-50"):
        hf.StableResponse(1e-50).table(3)
    with pytest.raises(hf.errors.InvalidInput, match="epsilon=1e-12"):
        hf.mechanisms.NoisyArgmax(1e-12)
    with pytest.raises(hf.errors.InvalidInput, match="expected a Certificate"):
        hf.StableResponse(1.0).release(torch.tensor([1]))
    with pytest.raises(hf.errors.InvalidInput, match="classes=1"):
        hf.StableResponse(1.0).table(1)


def test_guarantees_compare_by_value_and_print() -> None:
    assert hf.StableResponse(0.5, 1e-6).guarantee("replace") == hf.accounting.ApproximateGuarantee(
        0.5, 1e-6, hf.Neighbours.REPLACE
    )
    assert (
        str(hf.StableResponse(0.5).guarantee())
        == "(0.5, 0)-differential privacy per record, add_remove"
    )
    guarantee = hf.BudgetedResponse(hf.Budget(10.0, 1e-5), 100, order=3.0).guarantee()
    assert guarantee.order == 3.0
    assert "Rényi differential privacy per record" in str(guarantee)
    assert hf.SparseVector(1.0, 1e-6, 1, 1000).guarantee().delta == 1e-6
