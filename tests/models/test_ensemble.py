"""Ensembles: the split, the vote, saved files and refused input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import holdfast as hf

RECIPE = hf.Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=20, batches=2)


def make_model(seed: int) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 3))


def data(records: int = 120, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (records,), generator=generator)
    return torch.nn.functional.one_hot(y, 3) * 2.0 + torch.randn(records, 3, generator=generator), y


@pytest.fixture(scope="module")
def ensemble() -> hf.models.CertifiedEnsemble:
    return hf.train_ensemble(make_model, *data(), RECIPE, members=4, max_distance=6, progress=False)


def test_votes_predictions_and_certificates_agree(ensemble: hf.models.CertifiedEnsemble) -> None:
    queries, _ = data(50, seed=1)
    certificate = ensemble.certify(queries)
    assert torch.equal(certificate.votes, ensemble.votes(queries))
    assert torch.equal(certificate.labels, ensemble.predict(queries))
    assert certificate.nested
    assert certificate.classes == ensemble.classes == 3
    # Changing the vote takes several members, so the distance can exceed that of one member.
    assert int(certificate.distances.max()) > ensemble.distances[-1]


def test_progress_changes_nothing(ensemble: hf.models.CertifiedEnsemble) -> None:
    queries = data(700, seed=1)[0]
    found, shown = ensemble.certify(queries), ensemble.certify(queries, progress=True)
    assert found.votes is not None
    assert shown.votes is not None
    assert torch.equal(found.votes, shown.votes)
    assert torch.equal(found.distances, shown.distances)


def test_every_record_trains_one_member(ensemble: hf.models.CertifiedEnsemble) -> None:
    """Removing one record changes exactly one member, and no bit of the others."""
    x, y = data()
    for row in (0, 17, 63):
        keep = torch.arange(len(y)) != row
        other = hf.train_ensemble(
            make_model, x[keep], y[keep], RECIPE, members=4, max_distance=1, progress=False
        )
        changed = [
            any(
                not torch.equal(a.bounds(0).lower[name], b.bounds(0).lower[name])
                for name in a.network.trainable
            )
            for a, b in zip(ensemble.members, other.members, strict=True)
        ]
        assert sum(changed) == 1


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_real_neighbours_keep_p1_and_p2(relation: str) -> None:
    x, y = data(60)
    queries, _ = data(200, seed=2)
    ids = list(range(60))

    def certificate(x: torch.Tensor, y: torch.Tensor, ids: list[int]) -> hf.Certificate:
        trained = hf.train_ensemble(
            make_model,
            x,
            y,
            RECIPE,
            members=3,
            neighbours=relation,
            max_distance=5,
            ids=ids,
            progress=False,
        )
        return trained.certify(queries)

    here = certificate(x, y, ids)
    touched = 0
    for row in range(0, 60, 6):
        other_x, other_y, other_ids = x.clone(), y.clone(), list(ids)
        if relation == "replace":
            other_x[row], other_y[row] = -9 * x[row], (y[row] + 1) % 3
        else:
            keep = torch.arange(60) != row
            other_x, other_y, other_ids = x[keep], y[keep], [i for i in ids if i != row]
        there = certificate(other_x, other_y, other_ids)
        assert int((here.distances - there.distances).abs().max()) <= 1
        stable = (here.distances > 0) | (there.distances > 0)
        assert torch.equal(here.labels[stable], there.labels[stable])
        touched += int((here.distances != there.distances).any())
    assert touched


def test_the_split_is_independent_of_the_batches() -> None:
    """The split into members is independent of the split into batches.

    If both used one hash and there were as many members as batches, each member would have one
    batch.
    """
    recipe = hf.Recipe(epochs=1, learning_rate=1.0, clip=0.1, batch_size=20, batches=4)
    from holdfast.records import assign_parts, content_ids

    codes = content_ids(*data(400))
    member, batch = (
        assign_parts(codes, 4, recipe.seed, b"member"),
        assign_parts(codes, 4, recipe.seed, b"batch"),
    )
    counts = torch.bincount(member * 4 + batch, minlength=16)
    assert int(counts.min()) > 5


def test_a_member_without_records_keeps_its_initial_weights() -> None:
    x, y = data(3)
    ensemble = hf.train_ensemble(
        make_model, x, y, RECIPE, members=8, max_distance=2, progress=False
    )
    untouched = [
        torch.equal(member.model[0].weight, make_model(i)[0].weight)
        for i, member in enumerate(ensemble.members)
    ]
    assert sum(untouched) >= 5
    assert ensemble.certify(x).distances.shape == (3,)


def test_saved_and_loaded(ensemble: hf.models.CertifiedEnsemble, tmp_path: Path) -> None:
    queries, _ = data(30, seed=3)
    ensemble.save(tmp_path / "ensemble.holdfast")
    loaded = hf.load(tmp_path / "ensemble.holdfast")
    assert isinstance(loaded, hf.models.CertifiedEnsemble)
    before, after = ensemble.certify(queries), loaded.certify(queries)
    assert torch.equal(before.labels, after.labels)
    assert torch.equal(before.distances, after.distances)
    assert torch.equal(before.votes, after.votes)
    assert loaded.dataset == "default"


def test_checkpoints_are_one_file_per_member(tmp_path: Path) -> None:
    arguments = {"members": 2, "max_distance": 1, "progress": False, "checkpoint": tmp_path / "run"}
    first = hf.train_ensemble(make_model, *data(40), RECIPE, **arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.0", "run.1"]
    again = hf.train_ensemble(make_model, *data(40), RECIPE, **arguments)
    queries, _ = data(30, seed=3)
    assert torch.equal(first.certify(queries).distances, again.certify(queries).distances)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neighbours": "replace"}, "needs ids"),
        ({"members": 0}, "members=0"),
        ({"recipe": hf.Recipe(epochs=1)}, "batch_size=None"),
        ({"recipe": "sgd"}, "expected an hf.Recipe"),
        ({"ids": "abc"}, "expected one whole number or string"),
        ({"ids": [1, 2]}, "2 ids for 120 records"),
        ({"data": torch.zeros(0, 3), "y": torch.zeros(0, dtype=torch.int64)}, "x is empty"),
        ({"y": torch.zeros(5, dtype=torch.int64)}, "y has shape"),
        ({"dataset": ""}, "dataset=''"),
        ({"public": 5}, "expected a pair"),
        ({"public": (1,)}, "expected a pair"),
        ({"preprocessing": "none"}, "expected an hf.Preprocessing"),
        (
            {"make_model": lambda seed: torch.nn.Sequential(torch.nn.Linear(3, 3 + seed))},
            "different numbers of outputs",
        ),
    ],
)
def test_bad_input_is_refused_before_training(change: dict, message: str) -> None:
    x, y = data()
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train_ensemble(
            **(
                {
                    "make_model": make_model,
                    "data": x,
                    "y": y,
                    "recipe": RECIPE,
                    "members": 3,
                    "max_distance": 1,
                    "progress": False,
                }
                | change
            )
        )


def test_a_grid_of_distances_may_come_from_a_generator() -> None:
    ensemble = hf.train_ensemble(
        make_model, *data(40), RECIPE, members=2, distances=(k for k in (1, 3)), progress=False
    )
    assert {member.distances for member in ensemble.members} == {(1, 3)}


def test_members_of_different_relations_are_not_combined() -> None:
    from holdfast.certificates import certify_vote

    one = [
        hf.Certificate(torch.tensor([0]), torch.tensor([5]), relation, 2)
        for relation in ("add_remove", "remove")
    ]
    for members in (one, []):
        with pytest.raises(hf.errors.InvalidInput, match="relation and number of classes"):
            certify_vote(members)


def test_the_normaliser_under_replace_is_the_members_share() -> None:
    x, y = data()
    recipe = hf.Recipe(epochs=1, learning_rate=1.0, clip=0.1)
    ensemble = hf.train_ensemble(
        make_model,
        x,
        y,
        recipe,
        members=4,
        neighbours="replace",
        max_distance=1,
        ids=range(120),
        progress=False,
    )
    assert {member.recipe.batch_size for member in ensemble.members} == {30}


def test_models_of_the_same_records_are_no_ensemble(
    ensemble: hf.models.CertifiedEnsemble, tmp_path: Path
) -> None:
    """Models that share records are refused as an ensemble.

    The distance of a vote adds up the members' distances, which is valid only for disjoint records.
    """
    x, y = data()
    alone = [
        hf.train(make_model(seed), x, y, RECIPE, max_distance=6, progress=False)
        for seed in range(3)
    ]
    one, two, three, four = ensemble.members
    other = hf.train_ensemble(
        make_model, x, y, replace(RECIPE, seed=1), members=4, max_distance=6, progress=False
    )
    refused = [
        alone,
        [one, two, three, alone[0]],
        [one, two, three],
        [one, two, three, replace(one)],
        [one, two, three, other.members[3]],
    ]
    for members in refused:
        with pytest.raises(hf.errors.InvalidInput, match="not the parts of one split"):
            hf.models.CertifiedEnsemble(tuple(members))
    hf.models.CertifiedEnsemble((four, two, one, three))  # the order does not matter
    assert [member.part.index for member in ensemble.members] == [0, 1, 2, 3]
    ensemble.save(tmp_path / "ensemble.holdfast")
    assert [member.part for member in hf.load(tmp_path / "ensemble.holdfast").members] == [
        member.part for member in ensemble.members
    ]


def train_again(
    kind: str, x: torch.Tensor, y: torch.Tensor, **options: object
) -> hf.models.CertifiedEnsemble:
    if kind == "network":
        return hf.train_ensemble(
            make_model, x, y, RECIPE, members=4, max_distance=6, progress=False, **options
        )
    recipe = hf.LinearRecipe(batch_size=30, travel=20.0)
    return hf.train_linear(x, y, recipe, classes=3, members=4, progress=False, **options)


@pytest.mark.parametrize("kind", ["network", "head"])
def test_members_of_different_calls_are_no_ensemble(kind: str) -> None:
    """One record can be in every part, if each call gives it another id.

    Seed, count and index of the parts are those of one split all the same.
    """
    x, y = data()
    calls = []
    for wanted in range(4):
        ids = torch.arange(1000, 1000 + len(y))
        ids[0] = wanted
        calls.append(train_again(kind, x, y, ids=ids))
    mixed = tuple(call.members[index] for index, call in enumerate(calls))
    assert [member.part.index for member in mixed] == [0, 1, 2, 3]
    with pytest.raises(hf.errors.InvalidInput, match="made by one call"):
        hf.models.CertifiedEnsemble(mixed)
    for call in calls:
        hf.models.CertifiedEnsemble(call.members)


@pytest.mark.parametrize("kind", ["network", "head"])
def test_members_of_older_versions_are_taken_from_one_file_alone(kind: str, tmp_path: Path) -> None:
    """They have no token; a file holds none for them, so that their signatures stay valid."""
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("default", hf.Budget(1.0), queries=10)
    new = train_again(kind, *data())
    members = tuple(replace(member, part=replace(member.part, call="")) for member in new.members)
    with pytest.raises(hf.errors.InvalidInput, match="older version"):
        hf.models.CertifiedEnsemble(members)
    old = hf.models.CertifiedEnsemble(members, from_file=True)
    old.save(tmp_path / "old.holdfast", ledger=ledger)
    assert b"call" not in (tmp_path / "old.holdfast").read_bytes()
    loaded = hf.load(tmp_path / "old.holdfast")
    hf.PrivatePredictor(loaded, ledger, require_signature=True)
    with pytest.raises(hf.errors.InvalidInput, match="older version"):
        hf.models.CertifiedEnsemble(loaded.members)
    with pytest.raises(hf.errors.InvalidInput, match="older version"):
        replace(loaded, preprocessing=None)


@pytest.mark.parametrize("kind", ["network", "head"])
def test_the_token_of_a_call_is_saved_and_signed(kind: str, tmp_path: Path) -> None:
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("default", hf.Budget(1.0), queries=10)
    made = train_again(kind, *data())
    made.save(tmp_path / "new.holdfast", ledger=ledger)
    loaded = hf.load(tmp_path / "new.holdfast")
    assert {member.part.call for member in loaded.members} == {made.members[0].part.call}
    hf.PrivatePredictor(loaded, ledger, require_signature=True)
    forged = tuple(
        replace(member, part=replace(member.part, call="0" * 32)) for member in loaded.members
    )
    ensemble = hf.models.CertifiedEnsemble(forged, signature=loaded.signature)
    with pytest.raises(hf.errors.DamagedFile, match="not the one that was signed"):
        hf.PrivatePredictor(ensemble, ledger)


def test_an_ensemble_resumed_from_its_checkpoints_is_of_one_call(tmp_path: Path) -> None:
    """Members that were finished before the interruption get the token of the others."""
    x, y = data()
    options = {"members": 4, "max_distance": 6, "progress": False}
    path = tmp_path / "checkpoint"
    first = hf.train_ensemble(make_model, x, y, RECIPE, checkpoint=path, **options)
    (tmp_path / "checkpoint.3").unlink()  # as if the call had ended before the last member
    resumed = hf.train_ensemble(make_model, x, y, RECIPE, checkpoint=path, **options)
    assert len({member.part.call for member in resumed.members}) == 1
    with pytest.raises(hf.errors.InvalidInput, match="made by one call"):
        hf.models.CertifiedEnsemble((*first.members[:3], resumed.members[3]))
