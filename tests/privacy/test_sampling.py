"""Sampling: the right probabilities are accepted and wrong ones rejected.

Draws are also tested exactly at the boundaries of the tables.
"""

from __future__ import annotations

import math

import pytest
import torch

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.mechanisms.table import SYSTEM, SystemEntropy, Table, inverse_cdf, wrong_label_shares

DRAWS = 120_000


def deviates(counts: list[int], probabilities: list[float]) -> bool:
    """Return whether a count is 5 standard deviations off (by chance about once in a million)."""
    n = sum(counts)
    return any(
        abs(c - n * p) > 5 * math.sqrt(n * p * (1 - p)) + 1e-9
        for c, p in zip(counts, probabilities, strict=True)
    )


def counts(table: Table, label: int, distance: int, entropy) -> list[int]:
    drawn = torch.tensor([table.draw(label, distance, entropy) for _ in range(DRAWS)])
    return torch.bincount(drawn, minlength=table.classes).tolist()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("distance", [0, 3])
@pytest.mark.parametrize(
    "entropy", [hf.mechanisms.SeededEntropyForTests(3), SYSTEM], ids=["seeded", "system"]
)
def test_right_probabilities_are_accepted_and_wrong_ones_rejected(
    classes: int, distance: int, entropy
) -> None:
    table = hf.StableResponse(0.3).table(classes)
    expected = [x / SCALE**2 for x in table.outcome(1, distance)]
    drawn = counts(table, 1, distance, entropy)
    assert not deviates(drawn, expected)
    wrong = Table(tuple(int(row * 1.05) for row in table.rows), classes)
    assert deviates(drawn, [x / SCALE**2 for x in wrong.outcome(1, distance)])
    assert deviates(counts(wrong, 1, distance, entropy), expected)


def test_a_certificates_release_has_the_tables_probabilities() -> None:
    certificate = hf.Certificate(
        torch.ones(DRAWS, dtype=torch.int64), torch.full((DRAWS,), 40), "replace", 2
    )
    mechanism = hf.BudgetedResponse(hf.Budget(10.0, 1e-5), DRAWS)
    kept = float(mechanism.keep_probability(certificate)[0])
    released = mechanism.release(certificate, entropy=hf.mechanisms.SeededEntropyForTests(5))
    assert not deviates(torch.bincount(released, minlength=2).tolist(), [1 - kept, kept])
    assert deviates(
        torch.bincount(released, minlength=2).tolist(), [(1 - kept) * 1.05, 1 - (1 - kept) * 1.05]
    )


def test_noisy_argmax_is_sampled_as_tabled() -> None:
    votes = torch.tensor([[3, 5, 2]] * 3)
    certificate = hf.Certificate(
        torch.ones(3, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        "add_remove",
        3,
        votes=votes,
    )
    mechanism, entropy = hf.mechanisms.NoisyArgmax(0.8), hf.mechanisms.SeededEntropyForTests(2)
    table = mechanism.table((3, 5, 2))
    rows = [row / SCALE for row in table]
    drawn = torch.bincount(
        torch.tensor([inverse_cdf(table, entropy.draw()) for _ in range(DRAWS)]), minlength=3
    ).tolist()
    assert not deviates(drawn, rows)
    assert deviates(drawn, [rows[0] * 1.05, 1 - rows[0] * 1.05 - rows[2], rows[2]])
    assert float(mechanism.keep_probability(certificate)[0]) == pytest.approx(rows[1])
    edges = Scripted(table[0] - 1, table[0], SCALE - 1)
    assert mechanism.release(certificate, entropy=edges).tolist() == [0, 1, 2]


class Scripted:
    """An entropy source that returns the given numbers in order."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def draw(self) -> int:
        return self.numbers.pop(0)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_draws_are_exact_at_every_edge(classes: int) -> None:
    """The answer changes exactly at the whole number in the row, and so do the other labels.

    Hence the probabilities of the samples are exactly those of the table.
    """
    table = hf.StableResponse(0.5).table(classes)
    for label in range(classes):
        assert table.draw(label, 4, Scripted(table.rows[4], 0)) == label
        assert table.draw(label, 4, Scripted(SCALE - 1, SCALE - 1)) == label
        others = [other for other in range(classes) if other != label]
        start = 0
        for other, share in zip(others, wrong_label_shares(classes), strict=True):
            assert table.draw(label, 4, Scripted(table.rows[4] - 1, start)) == other
            assert table.draw(label, 4, Scripted(0, start + share - 1)) == other
            start += share
        assert start == SCALE


def test_places_are_exact_at_every_edge() -> None:
    rows = (5, 0, SCALE - 12, 7)
    assert [inverse_cdf(rows, n) for n in (0, 4, 5, SCALE - 8, SCALE - 7, SCALE - 1)] == [
        0,
        0,
        2,
        2,
        3,
        3,
    ]


@pytest.mark.parametrize("distance", [0, 1, 50, 10**6])
def test_every_distance_takes_the_same_random_bits(distance: int) -> None:
    entropy = Scripted(1, 2, 3)
    hf.StableResponse(1.0).table(3).draw(0, distance, entropy)
    assert entropy.numbers == [3]


def test_system_entropy_has_128_bits() -> None:
    drawn = [SystemEntropy().draw() for _ in range(2000)]
    assert len(set(drawn)) == 2000
    for bit in range(128):
        assert 800 < sum(n >> bit & 1 for n in drawn) < 1200
    assert max(drawn) < SCALE


def test_the_seeded_source_repeats_and_the_system_does_not() -> None:
    certificate = hf.Certificate(
        torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int64), "add_remove", 2
    )
    mechanism = hf.StableResponse(0.1)
    first, second = (
        mechanism.release(certificate, entropy=hf.mechanisms.SeededEntropyForTests(9))
        for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(mechanism.release(certificate), mechanism.release(certificate))
