"""The planner: its arithmetic against slow ways to the same numbers, its choice, its refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.errors import InvalidInput
from holdfast.heads.certified import CertifiedHead
from holdfast.heads.recipe import noise_per_sensitivity
from holdfast.planning import Plan, PlanCell, distance_needed
from holdfast.planning.outcomes import approximate_distance, flip_probability
from holdfast.planning.planner import Trial, rehearse_on
from holdfast.planning.trials import Stage
from holdfast.planning.ways import (
    CLOSED_FORM,
    BoxAnswers,
    EnsembleAnswers,
    HeadAnswers,
    HeadRelease,
    PublicLabels,
    Way,
    noisy_descent_accuracy,
    released_accuracy,
    round_down_to_two_digits,
)

BUDGET = hf.Budget(1.0, 1e-5)
OURS = ["answers from a head", "release of the head"]


def clouds(count: int, classes: int = 2, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    chance = np.random.default_rng(seed)
    y = chance.integers(classes, size=count)
    x = chance.normal(size=(count, 4)) + 1.5 * np.eye(4)[y]
    return torch.from_numpy(x), y


def make_stage(count: int = 2000, records: int = 2000, classes: int = 2) -> Stage:
    x, y = clouds(count + 500, classes)
    settings = {"records": records, "classes": classes, "neighbours": "add_remove", "options": {}}
    public = (x[:count], y[:count])
    return Stage(*public, x[count:], y[count:], public, **settings)


def test_answers_from_a_head_are_what_a_simulation_finds() -> None:
    stage = make_stage()
    recipe = hf.LinearRecipe.for_budget(
        records=2000, features=4, classes=2, budget=BUDGET, queries=50
    )
    head = hf.train_linear(
        stage.x, stage.y, recipe, classes=2, ids=range(len(stage.y)), progress=False
    )
    found = hf.simulate(head, stage.query_x, stage.query_y, budget=BUDGET, queries_planned=50)
    wanted = found.mechanisms["BudgetedResponse"][0].accuracy
    assert HeadAnswers().accuracy(stage, BUDGET, 50) == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_accuracy_of_a_release_is_the_mean_over_draws(classes: int) -> None:
    stage = make_stage(classes=classes)
    budget = hf.Budget(0.3, 1e-5)
    recipe = hf.LinearRecipe.for_release(records=2000, features=4, classes=classes, budget=budget)
    head = stage.head(recipe, "softmax")
    assert isinstance(head, CertifiedHead)
    noise = noise_per_sensitivity(budget) * head.ball.sensitivity
    features, _, _ = head.inputs(head.features(stage.query_x), head.scheme)
    chance = np.random.default_rng(1)
    right = []
    for _ in range(300):
        weights = head.weights.numpy() + noise * chance.normal(size=head.weights.shape)
        scores = features @ weights.T
        labels = scores[:, 0] > 0 if classes == 2 else scores.argmax(1)
        right.append((labels == stage.query_y).mean())
    tolerance = 0.01 if classes == 2 else 0.03
    found = HeadRelease().accuracy(stage, budget, 1)
    assert found == released_accuracy(head, noise, stage.query_x, stage.query_y)
    assert found == pytest.approx(np.mean(right), abs=tolerance)


def test_few_records_stand_for_many() -> None:
    """Distances are multiplied and noise is divided; more private records never hurt."""
    few, many = make_stage(records=2000), make_stage(records=20_000)
    head = hf.LinearRecipe(batch_size=1, travel=10.0)
    first, second = (stage.certificate(stage.head(head)).distances for stage in (few, many))
    assert torch.equal(second, 10 * first)
    for way in (HeadAnswers(), HeadRelease(), EnsembleAnswers(), BoxAnswers()):
        small, large = (way.accuracy(stage, hf.Budget(0.1, 1e-5), 100) for stage in (few, many))
        assert large >= small


@pytest.mark.parametrize(
    ("epsilon", "queries", "classes"),
    [(10.0, 1, 2), (10.0, 100, 2), (1.0, 100, 2), (0.1, 1, 2), (10.0, 10_000, 2), (1.0, 10, 10)],
)
def test_the_approximation_of_a_table(epsilon: float, queries: int, classes: int) -> None:
    budget, distances = hf.Budget(epsilon, 1e-5), torch.tensor([0, 1, 2, 5, 10, 20, 50, 120])
    mechanism = hf.BudgetedResponse(budget, queries)
    table = mechanism.table(classes, 127)
    found = 1.0 - flip_probability(budget, queries, classes, distances.numpy())
    assert np.abs(found - table.keep_probability(distances).numpy()).max() < 2e-3
    needed = distance_needed(mechanism, classes=classes)
    assert isinstance(needed, int)
    if needed <= 127:
        assert abs(approximate_distance(budget, queries, classes) - needed) <= 1


def test_two_digits() -> None:
    given = torch.tensor([0, 7, 99, 100, 109, 119, 98_765])
    assert round_down_to_two_digits(given).tolist() == [0, 7, 99, 100, 100, 110, 98_000]


class Learning(Way):
    """A way whose error is a constant plus one over the number of records beyond 2 d."""

    name = "learning"

    def accuracy(self, stage: Stage, budget: hf.Budget, queries: int) -> float:
        return 0.8 - 10.0 / (len(stage.y) - 2 * stage.features)


def test_a_rehearsal_is_carried_on_to_the_number_of_private_records() -> None:
    x, y = clouds(300)
    for rehearsal in rehearse_on(x, y, 5000, 2, "add_remove", {}, None):
        found = rehearsal.accuracy(Learning(), BUDGET, 1)
        assert found == pytest.approx(0.8 - 10.0 / (5000 - 8))
        assert len(rehearsal.stage.y) == 200
        assert [len(half.y) for half in rehearsal.halves] == [100, 100]
        assert PublicLabels().final_records(rehearsal.stage) == 300
    assert Trial(make_stage()).accuracy(Learning(), BUDGET, 1) == 0.8 - 10.0 / (2000 - 8)


class FailsWithHalf(Way):
    """A way that is useless with half of the records."""

    name = "fails with half"

    def accuracy(self, stage: Stage, budget: hf.Budget, queries: int) -> float:
        return 0.85 if len(stage.y) >= 200 else 0.5


def test_no_way_is_expected_to_beat_a_regression_without_noise() -> None:
    x, y = clouds(300)
    for rehearsal in rehearse_on(x, y, 5000, 2, "add_remove", {}, None):
        plain = rehearsal.extrapolated(lambda each: PublicLabels().accuracy(each, BUDGET, 1) or 0.0)
        found = rehearsal.accuracy(FailsWithHalf(), BUDGET, 1)
        assert found is not None
        assert 0.85 <= found <= max(0.85, plain)
        assert rehearsal.extrapolated(lambda each: 0.85 if len(each.y) >= 200 else 0.5) == 1.0


def test_noisy_descent_learns_with_a_budget_and_not_without() -> None:
    stage = make_stage()
    plain = np.mean([noisy_descent_accuracy(stage, hf.Budget(10.0, 1e-5), seed) for seed in (0, 1)])
    assert plain > 0.8
    with pytest.warns(hf.errors.HoldfastWarning, match="mostly noise"):
        hopeless = noisy_descent_accuracy(stage, hf.Budget(0.001, 1e-5), 0)
    assert hopeless < plain


def cell(way: str, ours: bool, accuracy: float | None) -> PlanCell:
    return PlanCell(1.0, 1e-5, 10, way, ours, CLOSED_FORM, accuracy)


@pytest.mark.parametrize(
    ("head", "release", "rival", "choice"),
    [
        (0.9, 0.8, 0.85, "answers from a head"),
        (0.8, 0.9, 0.904, "release of the head"),  # a rival must be better by more than .005
        (0.8, 0.9, 0.91, "DP-SGD"),
        (0.9, 0.901, 0.7, "answers from a head"),  # equal: the first
        (None, 0.6, 0.5, "release of the head"),
    ],
)
def test_the_choice(head: float | None, release: float, rival: float, choice: str) -> None:
    cells = (cell(OURS[0], True, head), cell(OURS[1], True, release), cell("DP-SGD", False, rival))
    found = Plan(cells, "public records", (), {})
    assert found.best(BUDGET, 10).way == choice
    assert choice in found.recommendation(BUDGET, 10)
    assert ("outside holdfast" in found.recommendation(BUDGET, 10)) == (choice == "DP-SGD")
    with pytest.raises(InvalidInput, match="not in the plan"):
        found.best(BUDGET, 11)


def test_public_labels_are_preferred_if_they_are_as_good() -> None:
    """They need no budget."""
    for ours, choice in ((0.904, "public labels alone"), (0.91, OURS[0])):
        cells = (cell(OURS[0], True, ours), cell("public labels alone", False, 0.9))
        found = Plan(cells, "public records", (), {})
        assert found.best(BUDGET, 10).way == choice
    assert "add nothing" in Plan(
        (cell("public labels alone", False, 0.9),), "public records", (), {}
    ).recommendation(BUDGET, 10)


def test_a_useless_plan_says_so() -> None:
    for accuracy, classes, useless in ((0.54, 2, True), (0.6, 2, False), (0.14, 10, True)):
        found = Plan((cell(OURS[0], True, accuracy),), "public records", (), {}, classes)
        assert ("hardly better than guessing" in found.recommendation(BUDGET, 10)) is useless


def test_a_plan_on_public_records(tmp_path: Path) -> None:
    x, y = clouds(600)
    budgets = [hf.Budget(0.3, 1e-5), BUDGET]
    found = hf.plan(budgets, [1, 100_000], records=5000, public=(x, y), ways=OURS, progress=False)
    assert found.basis == "public records"
    assert found.best(BUDGET, 100_000).way == "release of the head"
    head = {cell.queries: cell.accuracy for cell in found.cells if cell.way == OURS[0]}
    assert head[1] > head[100_000]
    assert len(found.distances) == 4
    found.plot(tmp_path / "plan.png", title="a plan")
    assert (tmp_path / "plan.png").stat().st_size > 5000
    assert {row["way"] for row in found.as_dict()["best"]} <= set(OURS)


def test_the_private_records_are_refused_unless_nothing_will_be_published() -> None:
    x, y = clouds(300)
    settings = {"records": 300, "ways": OURS[1:], "progress": False}
    with pytest.raises(InvalidInput, match="keep_secret=True"):
        hf.plan(BUDGET, 10, private=(x, y), **settings)
    found = hf.plan(BUDGET, 10, private=(x, y), keep_secret=True, **settings)
    assert "keep the plan and the choice secret" in found.basis


def test_senseless_plans_are_refused() -> None:
    x, y = clouds(300)
    for given, match in (
        ({"public": (x, y), "private": (x, y)}, "expected one of them"),
        ({"public": (x[:20], y[:20])}, "too few to rehearse on"),
        ({}, "features is missing"),
        ({"features": 3, "ways": ["magic"]}, "'magic' is not one of"),
        ({"features": 3, "neighbours": "remove"}, "allows no private answer"),
        ({"features": 3, "records": 0}, "records=0"),
    ):
        with pytest.raises(InvalidInput, match=match):
            hf.plan(BUDGET, 10, **{"records": 300, "progress": False, **given})
    for budget, queries in ((1.0, 10), ([], 10), (BUDGET, []), (BUDGET, 0), ([1.0], 5)):
        with pytest.raises(InvalidInput):
            hf.plan(budget, queries, records=10, features=2, progress=False)


def test_without_a_delta_there_is_no_release() -> None:
    found = hf.plan(hf.Budget(1.0), 10, records=500, features=3, ways=OURS, progress=False)
    assert [cell.way for cell in found.at(hf.Budget(1.0), 10)] == OURS[:1]
