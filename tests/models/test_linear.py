"""Heads as certified models: files, ensembles, mechanisms, ledger, statement, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.errors import DamagedFile, HoldfastWarning, InvalidInput, UnsupportedModel
from holdfast.files import read, write
from holdfast.heads.ball import FARTHEST
from holdfast.models import KIND

RECIPE = hf.LinearRecipe(batch_size=400, travel=50.0, clip=0.3)


@pytest.fixture(scope="module")
def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (600,), generator=chance)
    middles = torch.tensor([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    return torch.randn(600, 2, generator=chance) + middles[y], y


def train(clouds, **settings) -> hf.models.CertifiedModel:
    x, y = clouds
    return hf.train_linear(
        x, y, settings.pop("recipe", RECIPE), **{"classes": 3, "progress": False, **settings}
    )


class Squares(nn.Module):
    """A layer that holdfast does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x * x / 4], 1)


def same(a: hf.Certificate, b: hf.Certificate) -> bool:
    return torch.equal(a.labels, b.labels) and torch.equal(a.distances, b.distances)


@pytest.mark.parametrize("multiclass", ["pairs", "one_vs_rest", "softmax"])
def test_a_head_learns_and_is_stable(clouds, multiclass: str) -> None:
    head = train(clouds, multiclass=multiclass)
    certificate = head.certify(clouds[0])
    assert torch.equal(certificate.labels, head.predict(clouds[0]))
    assert (certificate.labels == clouds[1]).double().mean() > 0.85
    assert certificate.distances.double().median() > 3
    assert certificate.reach == FARTHEST
    assert same(certificate, head.certify_constant_work(head.features(clouds[0])))


def test_distances_have_no_cap_unless_one_is_given(clouds) -> None:
    recipe = replace(RECIPE, batch_size=10**7)
    with pytest.warns(HoldfastWarning, match="batch_size=10000000"):
        free = train(clouds, recipe=recipe).certify(clouds[0])
    assert free.distances.max() > 150
    capped = train(clouds, max_distance=5).certify(clouds[0])
    assert (int(capped.distances.max()), capped.reach) == (5, 5)


@pytest.mark.parametrize("kind", ["plain", "encoder", "offset", "both", "ensemble", "whitened"])
def test_saved_and_loaded(clouds, tmp_path: Path, kind: str) -> None:
    settings: dict = {
        "plain": {},
        "encoder": {"encoder": nn.Sequential(nn.Linear(2, 5), nn.Sequential(nn.ReLU()))},
        "offset": {"offset": nn.Linear(2, 3)},
        "both": {"encoder": nn.Linear(2, 5), "offset": nn.Linear(2, 3).double()},
        "ensemble": {"members": 2, "recipe": replace(RECIPE, batch_size=300)},
        "whitened": {"preprocessing": hf.Preprocessing.whitening(torch.randn(50, 2) * 2)},
    }[kind]
    head = train(clouds, **settings)
    head.save(tmp_path / "head.holdfast")
    again = hf.load(tmp_path / "head.holdfast")
    assert same(head.certify(clouds[0]), again.certify(clouds[0]))
    assert (again.recipe, again.run_id, again.neighbours) == (
        head.recipe,
        head.run_id,
        head.neighbours,
    )
    again.save(tmp_path / "again.holdfast")
    first, second = (read(tmp_path / f"{name}.holdfast", KIND) for name in ("head", "again"))
    assert first[0] == second[0]
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_foreign_encoders_and_offsets_are_given_again(clouds, tmp_path: Path) -> None:
    path = tmp_path / "head.holdfast"
    offset = nn.Sequential(Squares(), nn.Linear(4, 3))
    head = train(clouds, encoder=Squares(), offset=offset)
    head.save(path)
    with pytest.raises(InvalidInput, match=r"hf.load\(path, prefix=module\)"):
        hf.load(path, offset=offset)
    with pytest.raises(InvalidInput, match=r"hf.load\(path, offset=module\)"):
        hf.load(path, prefix=Squares())
    with pytest.raises(InvalidInput, match="not that of the saved head"):
        hf.load(path, prefix=Squares(), offset=nn.Sequential(Squares(), nn.Linear(4, 3)))
    again = hf.load(path, prefix=Squares(), offset=offset)
    assert same(head.certify(clouds[0]), again.certify(clouds[0]))
    train(clouds).save(path)
    with pytest.raises(InvalidInput, match="without prefix="):
        hf.load(path, prefix=Squares())
    box = hf.train(nn.Linear(2, 3), *clouds, hf.Recipe(batch_size=600), max_distance=1)
    box.save(path)
    with pytest.raises(InvalidInput, match="without offset="):
        hf.load(path, offset=Squares())


HEADERS = {
    "no scale": {"recipe": {"scale": None}},
    "more decay": {"recipe": {"weight_decay": 5.0}},
    "other scheme": {"scheme": "softmax", "classes": 2},
    "two classes": {"classes": 2},
    "names": {"names": ["a"]},
    "relation": {"neighbours": "remove"},
    "distance": {"max_distance": 0},
    "far": {"max_distance": 10**15},
}


@pytest.mark.parametrize("damage", ["too long", "dtype", "shape", "nan", *HEADERS])
def test_what_training_cannot_have_written_is_refused(clouds, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "head.holdfast"
    train(clouds).save(path)
    header, tensors = read(path, KIND)
    weights = tensors["0/weights"]
    if damage in HEADERS:
        about = header["members"][0]
        changes = dict(HEADERS[damage])
        about["recipe"] |= changes.pop("recipe", {})
        about |= changes
    else:
        tensors["0/weights"] = {
            "too long": weights * 1e6,
            "dtype": weights.float(),
            "shape": weights[:, :2],
            "nan": weights * float("nan"),
        }[damage]
    write(path, KIND, header, tensors)
    with pytest.raises((DamagedFile, InvalidInput)):
        hf.load(path)


def test_answers_are_charged_and_stated(clouds, tmp_path: Path) -> None:
    x, y = clouds
    head = hf.train_linear(x, y, RECIPE, classes=3, dataset="clouds", progress=False)
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("clouds", hf.Budget(5.0, 1e-5), queries=50)
    head.save(tmp_path / "head.holdfast", ledger=ledger)
    signed = hf.load(tmp_path / "head.holdfast")
    predictor = hf.PrivatePredictor(signed, ledger, require_signature=True)
    answers = predictor.ask(x[:40], analyst="ada")
    assert sum(answer.label == int(label) for answer, label in zip(answers, y, strict=False)) > 20
    assert ledger.status("clouds").answers == 40
    text = hf.serving.statement.privacy_statement(signed, ledger.status("clouds"))
    assert "a linear head with 3 weights, pairs" in text
    assert "every distance, without a limit" in text
    changed = replace(signed, weights=signed.weights * 0.5)
    with pytest.raises(DamagedFile, match="not the one that was signed"):
        hf.PrivatePredictor(changed, ledger)


def test_simulated_with_every_mechanism(clouds) -> None:
    x, y = clouds
    two = (x[y < 2], y[y < 2])
    head = train(two, classes=2)
    found = hf.simulate(
        head, *two, budget=hf.Budget(10.0, 1e-5), queries_planned=[1, 100]
    ).mechanisms
    assert found["BudgetedResponse"][1].accuracy > 0.9
    assert found["SparseVector"][0].accuracy > 0.5
    assert "CauchyResponse (paper)" in found
    session = hf.SparseVector(5.0, 1e-5, 3, 200).session()
    assert len(session.ask(head.certify(two[0][:5]))) > 0
    ensemble = train(two, classes=2, members=3, recipe=replace(RECIPE, batch_size=130))
    assert ensemble.certify(two[0]).votes is not None
    assert len({member.run_id for member in ensemble.members}) == 3


def test_classes_are_declared_by_number_or_by_name(clouds) -> None:
    x, y = clouds
    names = ["red", "green", "blue"]
    head = hf.train_linear(x, [names[label] for label in y], RECIPE, classes=names, progress=False)
    assert torch.equal(head.predict(x), train(clouds).predict(x))
    assert head.class_names([0, 2]) == ["red", "blue"]
    with pytest.raises(InvalidInput, match=r"y, row 1: 'grey'"):
        hf.train_linear(x[:1], ["grey"], RECIPE, classes=names, progress=False)
    with pytest.raises(InvalidInput, match="expected a label from 0 to 1"):
        train(clouds, classes=2)
    with pytest.raises(InvalidInput, match="never|must not be read off"):
        train(clouds, classes=None)
    with pytest.raises(InvalidInput, match="at least 2 classes"):
        train(clouds, classes=["a", "a"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": hf.Recipe(batch_size=10)}, "expected an hf.LinearRecipe"),
        ({"recipe": replace(RECIPE, batch_size=None)}, "the number of records is private"),
        ({"neighbours": "remove"}, "add_remove"),
        ({"neighbours": "replace", "members": 2}, "needs ids"),
        ({"neighbours": "replace", "recipe": replace(RECIPE, batches=2)}, "needs ids"),
        ({"max_distance": 0}, "max_distance=0"),
        ({"max_distance": 10**10}, "max_distance=10000000000"),
        ({"members": 0}, "members=0"),
        ({"multiclass": "votes"}, "multiclass='votes'"),
        ({"preprocessing": "scale"}, "expected an hf.Preprocessing"),
        ({"ids": [1, 2]}, "2 ids for 600 records"),
        ({"dataset": ""}, "dataset=''"),
        ({"offset": nn.Linear(2, 2)}, "expected 3 logits"),
        ({"classes": 1}, "classes=1"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(clouds, settings: dict, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        train(clouds, **settings)
    assert message in str(caught.value)


def test_modules_that_are_no_public_functions_of_a_record_are_refused(clouds) -> None:
    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(2)

    with pytest.raises(UnsupportedModel, match="different features the second time"):
        train(clouds, encoder=Random())
    with pytest.raises(UnsupportedModel, match="encoder is a str"):
        train(clouds, encoder="bert")


def test_replace_counts_an_exchange_as_two_records(clouds) -> None:
    one, two = train(clouds), train(clouds, neighbours="replace")
    assert two.radius(1) == pytest.approx(2 * one.radius(1))
    counted = train(clouds, neighbours="replace", recipe=replace(RECIPE, batch_size=None))
    assert counted.recipe.batch_size == 600


@pytest.mark.filterwarnings("ignore:NOT private. the head gives all records")
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_features_of_another_size_are_warned_about(clouds, scale: float) -> None:
    x, y = clouds
    with pytest.warns(HoldfastWarning, match=r"set scale= in the recipe"):
        hf.train_linear(x * scale, y, RECIPE, classes=3, progress=False)


def test_ranges_and_public_rows_tell_the_scale(clouds) -> None:
    x, y = clouds
    ranges = hf.Preprocessing.ranges({"a": (-5, 5), "b": (-5, 5)})
    assert train(clouds, preprocessing=ranges).recipe.scale == pytest.approx(1.0)
    public = hf.Preprocessing.whitening(x[:300] + 0.01, shrinkage=0.1)
    head = hf.train_linear(x, y, RECIPE, classes=3, preprocessing=public, progress=False)
    norms = head.inputs(head.features(x), head.scheme)[1]
    assert 0.8 < np.median(norms) < 1.2
    assert train(clouds, recipe=replace(RECIPE, scale=0.5)).recipe.scale == 0.5


def test_records_that_overflow_count_as_zero() -> None:
    x = np.array([[1.0, 0.0], [1e200, 1e200], [-1.0, 0.0]] * 20)
    recipe = replace(RECIPE, batch_size=60)
    head = hf.train_linear(x, [1, 0, 0] * 20, recipe, classes=2, progress=False)
    found = head.certify([[1e200, 1e200]])
    assert (found.labels.tolist(), found.distances.tolist()) == ([0], [0])
    assert head.predict([[1.0, 0.0]]).tolist() == [1]


@pytest.mark.filterwarnings("ignore:NOT private")
def test_members_and_batches_without_records_are_trained_too() -> None:
    """Whether a part is empty is private: nothing fails, and the member answers label 0."""
    recipe = replace(RECIPE, batches=5)
    ensemble = hf.train_linear([[1.0], [2.0]], [0, 1], recipe, classes=2, members=6, progress=False)
    empty = [member for member in ensemble.members if not member.weights.any()]
    assert empty
    assert {tuple(member.weights.shape) for member in ensemble.members} == {(1, 2)}
    assert empty[0].certify_member(torch.ones(1, 1).double()).distances.tolist() == [0]
    assert len(ensemble.certify([[1.0]])) == 1


def test_a_head_that_has_learned_nothing_is_warned_about() -> None:
    x = np.array([[50_000.0], [50_010.0], [49_990.0]] * 150)
    with pytest.warns(HoldfastWarning, match="no better than always answering 1"):
        hf.train_linear(
            x, [0, 1, 1] * 150, replace(RECIPE, scale=1 / 50_000), classes=2, progress=False
        )


def test_weights_of_another_shape_are_refused(clouds) -> None:
    """The compiled loops would read beyond them."""
    with pytest.raises(InvalidInput, match="expected float64"):
        replace(train(clouds), weights=torch.zeros(3, 0).double())


def test_a_query_does_not_depend_on_the_queries_beside_it(clouds) -> None:
    head = train(clouds, encoder=nn.Sequential(nn.Linear(2, 33), nn.Tanh()), offset=nn.Linear(2, 3))
    whole = head.certify(clouds[0][:50])
    for row in range(50):
        alone = head.certify(clouds[0][row : row + 1])
        assert same(alone, whole[row])


def test_an_estimate_of_the_run(clouds) -> None:
    about = hf.heads.estimate_linear_training(*clouds, RECIPE, classes=3)
    assert about.seconds > 0
    assert about.memory > 0
    assert about.file > 500
