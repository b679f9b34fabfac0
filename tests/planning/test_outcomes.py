"""Simulated outcomes in closed form are compared with answers that are really drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.mechanisms.sparse_vector import UNSTABLE
from holdfast.planning import (
    Outcome,
    largest_queries,
    mechanisms_to_compare,
    needed_distances,
)
from holdfast.planning.outcomes import _session, expected_outcomes, make_stable

QUERIES = 400
BUDGET = hf.Budget(5.0, 1e-4)


def case(classes: int, votes: bool = False) -> tuple[hf.Certificate, torch.Tensor]:
    generator = torch.Generator().manual_seed(classes)
    right = torch.randint(0, classes, (QUERIES,), generator=generator)
    wrong = torch.rand(QUERIES, generator=generator) < 0.2
    labels = torch.where(wrong, (right + 1) % classes, right)
    distances = torch.randint(0, 12, (QUERIES,), generator=generator)
    counts = torch.nn.functional.one_hot(labels, classes) * 3 + 1 if votes else None
    return hf.Certificate(labels, distances, "add_remove", classes, votes=counts), right


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(
    "mechanism",
    [hf.StableResponse(0.2), hf.BudgetedResponse(BUDGET, 400), hf.mechanisms.NoisyArgmax(0.7)],
    ids=lambda m: type(m).__name__,
)
def test_expected_accuracy_is_the_mean_of_drawn_answers(classes: int, mechanism) -> None:
    certificate, right = case(classes, votes=True)
    if isinstance(mechanism, hf.mechanisms.NoisyArgmax):  # takes milliseconds per answer
        certificate = hf.Certificate(
            certificate.labels[:40],
            certificate.distances[:40],
            "add_remove",
            classes,
            votes=certificate.votes[:40],
        )
        right = right[:40]
    expected = expected_outcomes(lambda budget, queries: mechanism)(certificate, right, BUDGET, 50)
    entropy = hf.mechanisms.SeededEntropyForTests(classes)
    drawn = torch.stack([mechanism.release(certificate, entropy=entropy) for _ in range(60)])
    error = 4 * (0.25 / drawn.numel()) ** 0.5
    assert float((drawn == right).double().mean()) == pytest.approx(expected.accuracy, abs=error)
    assert float((drawn == certificate.labels).double().mean()) == pytest.approx(
        expected.truth, abs=error
    )
    classwise = [
        float((drawn == right).double()[:, right == label].mean()) for label in range(classes)
    ]
    assert sum(classwise) / classes == pytest.approx(expected.balanced_accuracy, abs=3 * error)


def test_a_sparse_vector_session_is_the_mean_of_real_ones() -> None:
    certificate, right = case(3)
    asks, sessions = 60, 300
    distances = certificate.distances * 3
    certificate = hf.Certificate(certificate.labels, distances, "add_remove", 3)
    probe = hf.SparseVector(BUDGET.epsilon, BUDGET.delta, 8, max_distance=50)
    expected = _session(probe, certificate, right, asks)
    generator = torch.Generator().manual_seed(0)
    answered = correct = 0.0
    for seed in range(sessions):
        chosen = torch.randint(0, QUERIES, (asks,), generator=generator)
        part = hf.Certificate(
            certificate.labels[chosen], certificate.distances[chosen], "add_remove", 3
        )
        answers = probe.session(entropy=hf.mechanisms.SeededEntropyForTests(seed)).ask(part)
        stable_ones = answers != UNSTABLE
        answered += float(stable_ones.sum()) / asks
        correct += (
            float((answers == right[chosen][: len(answers)]).sum()) / asks
            + (1 - float(stable_ones.sum()) / asks) / 3
        )
    assert answered / sessions == pytest.approx(expected.truth, abs=0.03)
    assert correct / sessions == pytest.approx(expected.accuracy, abs=0.03)


def test_contenders_depend_on_what_the_certificate_supports() -> None:
    binary, three, voted = case(2)[0], case(3)[0], case(2, votes=True)[0]
    assert "CauchyResponse (paper)" in mechanisms_to_compare(binary, 1e-5)
    assert "CauchyResponse (paper)" not in mechanisms_to_compare(three, 1e-5)
    assert "BudgetedResponse" not in mechanisms_to_compare(binary, 0.0)
    assert "NoisyArgmax (paper)" in mechanisms_to_compare(voted, 1e-5)
    assert "NoisyArgmax (paper)" not in mechanisms_to_compare(binary, 1e-5)


def test_every_contender_does_better_with_more_budget() -> None:
    certificate, right = case(2, votes=True)
    for name, expected in mechanisms_to_compare(certificate, 1e-4).items():
        truths = [
            expected(certificate, right, hf.Budget(epsilon, 1e-4), 10).truth
            for epsilon in (0.1, 1.0, 10.0)
        ]
        assert truths == sorted(truths), name


def test_the_largest_number_of_queries_is_exact() -> None:
    certificate, right = case(2)
    expected = expected_outcomes(make_stable)
    most = largest_queries(expected, certificate, right, BUDGET, 0.7)
    assert (
        expected(certificate, right, BUDGET, most).accuracy
        >= 0.7
        > expected(certificate, right, BUDGET, most + 1).accuracy
    )
    assert largest_queries(expected, certificate, right, BUDGET, 0.99) == 0
    always = Outcome(1.0, 1.0, 1.0)
    assert largest_queries(lambda *_: always, certificate, right, BUDGET, 0.9) == 1_000_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 10.0}, "budget=10.0"),
        ({"budget": []}, "budget="),
        ({"budget": [hf.Budget(1.0), hf.Budget(1.0, 1e-6)]}, "the same delta"),
        ({"queries_planned": []}, "queries_planned is empty"),
        ({"queries_planned": 2.5}, "queries_planned=2.5"),
        ({"budget": [hf.Budget(1.0), hf.Budget(2.0)], "queries_planned": [1, 2]}, "single value"),
        ({"model": "m"}, "model is a str"),
    ],
)
def test_senseless_simulations_are_refused(given: dict, message: str) -> None:
    x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    recipe = hf.Recipe(batch_size=2)
    model = hf.train(torch.nn.Linear(1, 2), x, y, recipe, max_distance=1, progress=False)
    settings = {"model": model, "budget": hf.Budget(1.0), "queries_planned": 1, **given}
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.simulate(settings.pop("model"), x, y, **settings)


def test_a_simulation_needs_queries() -> None:
    x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    recipe = hf.Recipe(batch_size=2)
    model = hf.train(torch.nn.Linear(1, 2), x, y, recipe, max_distance=1, progress=False)
    with pytest.raises(hf.errors.InvalidInput, match="queries is empty"):
        hf.simulate(model, x[:0], y[:0], budget=hf.Budget(1.0))


@pytest.mark.parametrize("targets", [[(1.0, 10)], 5, [], [(hf.Budget(1.0), 0)], [3]])
def test_senseless_targets_are_refused(targets: object) -> None:
    with pytest.raises(hf.errors.InvalidInput):
        needed_distances(targets)


def test_a_simulation_can_be_drawn_and_read(tmp_path: Path) -> None:
    x, y = torch.tensor([[-1.0], [1.0]] * 20), torch.tensor([0, 1] * 20)
    recipe = hf.Recipe(batch_size=40, clip=0.5)
    model = hf.train(torch.nn.Linear(1, 2), x, y, recipe, max_distance=5, progress=False)
    budgets = [hf.Budget(epsilon, 1e-6) for epsilon in (0.1, 1.0, 10.0)]
    found = hf.simulate(model, x, y, budget=budgets, queries_planned=10)
    assert found.varies == "total epsilon"
    assert found.settings == (0.1, 1.0, 10.0)
    for outcomes in found.mechanisms.values():
        assert outcomes[0].accuracy <= outcomes[-1].accuracy <= found.plain.accuracy + 1e-12
    assert found.largest_queries(0.99, budget=budgets[-1])["BudgetedResponse"] > 0
    found.plot(tmp_path / "figure.png", title="a title")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
