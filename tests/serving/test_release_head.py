"""`hf.release_head` and the ledger: charged once, recorded, refused in time; what it returns."""

from __future__ import annotations

import json
import pickle
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.errors import DamagedFile, InvalidInput, TamperedLedger
from holdfast.heads.certified import CertifiedHead
from holdfast.ledger.entries import RELEASE

from ..ledger.parts import NAME, query, small_model, sqlite_at

BUDGET = hf.Budget(1.0, 1e-6)
pytestmark = pytest.mark.filterwarnings("ignore:NOT private")


def make_head(classes: int = 2, **settings: object) -> Any:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (3000,), generator=generator)
    middle = 2.0 * torch.eye(3)[:classes]
    x = torch.randn(3000, 3, generator=generator) + middle[y]
    recipe = hf.LinearRecipe(batch_size=3000, travel=100.0)
    options = {"classes": classes, "dataset": NAME, "progress": False, **settings}
    if classes > 2:
        options.setdefault("multiclass", "softmax")
    return hf.train_linear(x, y, recipe, **options)


@pytest.fixture(scope="module")
def head() -> CertifiedHead:
    return make_head()


@pytest.fixture
def ledger(tmp_path: Path) -> hf.Ledger:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, BUDGET, release=True)
    return ledger


def test_the_whole_budget_is_charged_and_the_release_recorded(
    head: CertifiedHead, ledger: hf.Ledger
) -> None:
    released = hf.release_head(head, ledger)
    status = ledger.status(NAME)
    assert status.remaining == 0.0
    assert (status.release, status.releases, status.answers) == (True, 1, 0)
    assert str(released.guarantee) == "(1, 1e-06)-differential privacy per record, add_remove"
    again = hf.release_head(head, hf.Ledger(ledger.address))
    assert torch.equal(released.weights, again.weights)
    assert released.release == again.release
    assert ledger.verify() == 2
    assert not torch.equal(released.weights, head.weights)


def test_a_crash_after_the_charge_loses_nothing(
    head: CertifiedHead, ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.heads import release

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(release, "_released", crash)
    with pytest.raises(KeyboardInterrupt):
        hf.release_head(head, ledger)
    monkeypatch.undo()
    assert ledger.status(NAME).remaining == 0.0
    assert hf.release_head(head, ledger).predict([[0.0, 9.0, 0.0]]).tolist() == [1]


def test_nothing_is_left_for_a_second_head(head: CertifiedHead, ledger: hf.Ledger) -> None:
    hf.release_head(head, ledger)
    for budget in (None, hf.Budget(0.1, 1e-7)):
        with pytest.raises(hf.BudgetExhausted, match="Nothing was answered or charged"):
            hf.release_head(replace(head, run_id="another"), ledger, budget=budget)
    assert ledger.status(NAME).releases == 1


def test_two_parts_of_a_budget_have_more_noise_than_the_whole(
    head: CertifiedHead, ledger: hf.Ledger, tmp_path: Path
) -> None:
    part = hf.Budget(0.5, 1e-6)
    first = hf.release_head(head, ledger, budget=part)
    left = ledger.status(NAME).remaining
    assert 0.0 < left < ledger.status(NAME).limit
    second = hf.release_head(head, ledger)
    assert ledger.status(NAME).remaining < 1e-9
    assert isinstance(second.guarantee, hf.accounting.RenyiGuarantee)
    assert "within the data set's budget (ε, δ) = (1, 1e-06)" in second.statement()
    whole = hf.Ledger(f"sqlite:///{tmp_path}/other.db", home=tmp_path / "other")
    whole.create_budget(NAME, BUDGET, release=True)
    alone = hf.release_head(head, whole)
    assert alone.release.noise < second.release.noise < first.release.noise
    # Both parts together keep the budget: their divergences add up to at most what it allows.
    assert first.release.cost + second.release.cost <= ledger.status(NAME).limit * (1 + 1e-12)


def test_raising_the_budget_counts_what_the_whole_release_costs_among_others(
    head: CertifiedHead, ledger: hf.Ledger
) -> None:
    released = hf.release_head(head, ledger)
    with pytest.raises(InvalidInput, match="raise the budget further"):
        ledger.raise_budget(NAME, hf.Budget(1.01, 1e-6))
    status = ledger.raise_budget(NAME, hf.Budget(2.0, 1e-6))
    assert status.spent == pytest.approx(released.release.cost, rel=1e-9)
    assert hf.Ledger(ledger.address).status(NAME).spent == status.spent
    more = hf.release_head(head, ledger, budget=hf.Budget(0.3, 1e-6))
    spent = ledger.status(NAME).spent
    assert spent == pytest.approx(released.release.cost + more.release.cost, rel=1e-9)
    ledger.verify()


def test_a_budget_for_answers_pays_for_a_release_only_as_a_whole(
    head: CertifiedHead, tmp_path: Path
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, BUDGET, queries=10)
    with pytest.raises(InvalidInput, match="granted for answers"):
        hf.release_head(head, ledger, budget=hf.Budget(0.5, 1e-7))
    hf.PrivatePredictor(head, ledger).ask([0.0, 1.0, 0.0])
    with pytest.raises(InvalidInput, match="granted for answers"):
        hf.release_head(head, ledger)
    other = hf.Ledger(f"sqlite:///{tmp_path}/other.db", home=tmp_path / "other")
    other.create_budget(NAME, BUDGET, queries=10)
    hf.release_head(head, other)
    assert other.status(NAME).remaining == 0.0
    with pytest.raises(hf.BudgetExhausted):
        hf.PrivatePredictor(head, other).ask([0.0, 1.0, 0.0])


def test_a_budget_for_a_release_has_no_default_mechanism(
    head: CertifiedHead, ledger: hf.Ledger
) -> None:
    with pytest.raises(InvalidInput, match="granted for the release of a head"):
        hf.PrivatePredictor(head, ledger)
    chosen = hf.PrivatePredictor(head, ledger, mechanism=hf.StableResponse(0.01))
    assert chosen.ask([0.0, 1.0, 0.0]).cost > 0.0
    assert isinstance(hf.release_head(head, ledger).guarantee, hf.accounting.RenyiGuarantee)


def test_what_cannot_be_released_is_refused_and_nothing_is_charged(
    head: CertifiedHead, ledger: hf.Ledger, tmp_path: Path
) -> None:
    for other, match in (
        (small_model(), "expected one linear head"),
        (make_head(members=2), "expected one linear head"),
        (make_head(members=2).members[0], "member of an ensemble"),
        (make_head(3, multiclass="pairs"), "multiclass='softmax'"),
        (make_head(3, multiclass="one_vs_rest"), "multiclass='softmax'"),
        (make_head(neighbours="replace"), "counted per record, under 'add_remove'"),
        (replace(head, dataset="unknown"), "no budget for the data set"),
    ):
        with pytest.raises(InvalidInput, match=match):
            hf.release_head(other, ledger)
    with pytest.raises(InvalidInput, match="expected hf.Budget"):
        hf.release_head(head, ledger, budget=1.0)
    with pytest.raises(InvalidInput, match="an hf.Ledger"):
        hf.release_head(head, "sqlite:///ledger.db")
    with pytest.raises(InvalidInput, match="needs a delta"):
        hf.release_head(head, ledger, budget=hf.Budget(0.5))
    assert ledger.status(NAME).spent == 0.0
    pure = hf.Ledger(f"sqlite:///{tmp_path}/pure.db", home=tmp_path / "pure")
    with pytest.raises(InvalidInput, match="needs a delta"):
        pure.create_budget(NAME, hf.Budget(1.0), release=True)
    pure.create_budget(NAME, hf.Budget(1.0))
    with pytest.raises(InvalidInput, match="needs a delta"):
        hf.release_head(head, pure)


def test_an_analysts_share_of_the_owner_counts(head: CertifiedHead, ledger: hf.Ledger) -> None:
    ledger.set_share(NAME, "owner", 0.5)
    released = hf.release_head(head, ledger)
    assert ledger.status(NAME).remaining == pytest.approx(ledger.status(NAME).limit / 2, rel=1e-6)
    assert isinstance(released.guarantee, hf.accounting.RenyiGuarantee)


def test_somebody_who_spends_in_between_is_noticed(
    head: CertifiedHead, ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.heads.release import Grid

    usual, drawn = Grid.add_noise, []

    def draw(grid: Grid, *arguments: object) -> np.ndarray:
        if not drawn:
            hf.PrivatePredictor(
                head, hf.Ledger(ledger.address), mechanism=hf.StableResponse(0.2)
            ).ask([0.0, 1.0, 0.0])
        drawn.append(usual(grid, *arguments))
        return drawn[-1]

    monkeypatch.setattr(Grid, "add_noise", draw)
    released = hf.release_head(head, ledger)
    assert len(drawn) == 2
    assert torch.equal(released.weights, torch.from_numpy(drawn[1]))
    assert ledger.status(NAME).remaining < 1e-9
    ledger.verify()


def test_the_database_does_not_hold_plain_weights(
    head: CertifiedHead, ledger: hf.Ledger, tmp_path: Path
) -> None:
    """Its administrator could read them before the charge is final."""
    released = hf.release_head(head, ledger)
    plain = released.weights.numpy().astype("<f8").tobytes().hex()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        ((about,),) = connection.execute(
            "SELECT about FROM holdfast_entries WHERE kind = ?", (RELEASE,)
        )
        assert json.loads(about)["weights"] != plain
        changed = json.loads(about)
        changed["weights"] = ("0" if changed["weights"][0] != "0" else "1") + changed["weights"][1:]
        connection.execute(
            "UPDATE holdfast_entries SET about = ? WHERE kind = ?", (json.dumps(changed), RELEASE)
        )
    (number,) = ledger.last_known(NAME).releases.values()
    assert json.loads(ledger._reader._recent[number].about)["weights"] == plain
    with pytest.raises(TamperedLedger):
        hf.release_head(head, hf.Ledger(ledger.address))


def test_a_signed_head_that_was_changed_is_refused(
    head: CertifiedHead, ledger: hf.Ledger, tmp_path: Path
) -> None:
    head.save(tmp_path / "head.holdfast", ledger=ledger)
    loaded = hf.load(tmp_path / "head.holdfast")
    with pytest.raises(DamagedFile):
        hf.release_head(replace(loaded, weights=loaded.weights + 1.0), ledger)
    with pytest.raises(InvalidInput, match="no signature"):
        hf.release_head(head, ledger, require_signature=True)
    hf.release_head(loaded, ledger, require_signature=True)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.filterwarnings("ignore:Front")
def test_all_forms_of_a_released_head_agree(
    classes: int, offset: bool, tmp_path: Path, ledger: hf.Ledger
) -> None:
    torch.manual_seed(0)
    public = torch.nn.Linear(3, 1 if classes == 2 else classes) if offset else None
    encoder = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU()) if offset else None
    head = make_head(classes, offset=public, encoder=encoder)
    released = hf.release_head(head, ledger)
    released.save(tmp_path / "released.holdfast")
    loaded = hf.load(tmp_path / "released.holdfast")
    assert isinstance(loaded, hf.ReleasedHead)
    assert torch.equal(loaded.weights, released.weights)
    assert loaded.statement() == released.statement()
    queries = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    queries[0], queries[1] = 1e300, 1e4  # overflows; far beyond the radius
    wanted = released.predict_proba(queries)
    assert wanted.shape == (50, classes)
    assert torch.equal(loaded.predict(queries), wanted.argmax(1))
    pipeline = pickle.loads(pickle.dumps(released.to_sklearn()))
    np.testing.assert_allclose(pipeline.predict_proba(queries.numpy()), wanted, atol=1e-12)
    assert pipeline.predict(queries.numpy()).tolist() == wanted.argmax(1).tolist()
    logits = released.to_torch()(queries[1:])
    torch.testing.assert_close(logits, released.scores(queries[1:]), rtol=1e-4, atol=1e-5)


def test_class_names_and_wrong_queries(ledger: hf.Ledger) -> None:
    x, y = torch.tensor([[-1.0], [1.0]] * 500), ["no", "yes"] * 500
    recipe = hf.LinearRecipe(batch_size=1000, travel=10.0)
    head = hf.train_linear(x, y, recipe, classes=["no", "yes"], dataset=NAME, progress=False)
    released = hf.release_head(head, ledger)
    assert released.class_names(released.predict([[9.0], [-9.0]]).tolist()) == ["yes", "no"]
    assert released.to_sklearn().predict(np.array([[9.0], [-9.0]])).tolist() == ["yes", "no"]
    with pytest.raises(InvalidInput, match="expected \\(number of queries, 1\\)"):
        released.predict([[1.0, 2.0]])
    with pytest.raises(InvalidInput, match="queries"):
        released.predict(query(1).tolist())


class Keeping(torch.nn.Module):
    """An encoder that keeps what passes it: in a list, an attribute and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(1, 3))
        self.log: list[torch.Tensor] = []
        self.last = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(x.clone())
        self.last = x.clone()
        self.seen.copy_(x[-1:])
        return self.linear(x)


@pytest.mark.parametrize("place", ["encoder", "offset"])
def test_no_record_leaves_with_an_encoder_that_keeps_records(
    place: str, ledger: hf.Ledger, tmp_path: Path
) -> None:
    """A released module once held every private record that had passed it."""
    keeping = Keeping()
    logits = torch.nn.Sequential(keeping, torch.nn.Linear(3, 1))
    module = keeping if place == "encoder" else logits
    released = hf.release_head(make_head(**{place: module}), ledger)
    released.predict(torch.ones(2, 3))
    exported = released.to_torch()
    for each in (exported, pickle.loads(pickle.dumps(released)).to_torch()):
        kept = next(part for part in each.modules() if isinstance(part, Keeping))
        # Shapes are found with zeros; nothing else may have passed.
        assert not any(record.any() for record in (*kept.log, kept.last, kept.seen))
    front = getattr(released.inputs, place)
    assert not any(step._input.any() for step in front._run._steps if hasattr(step, "_input"))
    pipeline = pickle.loads(pickle.dumps(released.to_sklearn()))
    assert pipeline.predict(np.zeros((1, 3))).shape == (1,)


def test_a_recorded_release_is_not_replayed_for_a_changed_head(
    head: CertifiedHead, ledger: hf.Ledger
) -> None:
    hf.release_head(head, ledger)
    with pytest.raises(InvalidInput, match="counted per record, under 'add_remove'"):
        hf.release_head(replace(head, neighbours=hf.Neighbours.REPLACE), ledger)
    for changed in (
        replace(head, recipe=replace(head.recipe, batch_size=10**6)),
        replace(make_head(3), run_id=head.run_id),
    ):
        with pytest.raises(hf.BudgetExhausted):
            hf.release_head(changed, ledger)


def test_files_that_no_release_has_written_are_refused(
    head: CertifiedHead, ledger: hf.Ledger, tmp_path: Path
) -> None:
    from holdfast.files import read, write
    from holdfast.heads.released import KIND

    path = tmp_path / "released.holdfast"
    hf.release_head(head, ledger).save(path)
    header, tensors = read(path, KIND)
    record = header["release"]
    forged = [
        ({**header, "release": {**record, **change}}, tensors)
        for change in (
            {"cost": -5.0},
            {"noise": 0.0},
            {"noise": "abc"},
            {"exponent": "x"},
            {"order": None},
            {"order": 0.5},
            {"budget": {"epsilon": 0.001, "delta": 0.0}},
            {"released": "today\n| promise | all |"},
            {"more": 1},
        )
    ]
    forged += [
        ({**header, "classes": 10**6, "scheme": "softmax"}, tensors),
        (header, {**tensors, "weights": tensors["weights"] * float("nan")}),
        (header, {**tensors, "weights": tensors["weights"][:, :-1]}),
    ]
    for changed, content in forged:
        write(path, KIND, changed, content)
        with pytest.raises(DamagedFile):
            hf.load(path)
    write(path, "holdfast certified model", header, tensors)
    with pytest.raises(DamagedFile):
        hf.load(path)
