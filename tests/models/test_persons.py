"""Privacy per person, from training to answers: what is shared, what is refused, what is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.errors import DamagedFile, InvalidInput
from holdfast.heads.certified import CertifiedHead
from holdfast.records.ids import (
    content_ids,
    encode_owners,
    records_per_owner,
    used_records,
)
from holdfast.serving.statement import privacy_statement

from ..ledger.parts import NAME, sqlite_at

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]

PERSONS = [f"patient {number // 3}" for number in range(60)]
RECIPE = hf.Recipe(clip=0.5, batch_size=20)
LINEAR = hf.LinearRecipe(batch_size=20, travel=20.0)


def records() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    return torch.randn(60, 3, generator=generator) + 2.0 * y[:, None], y


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def train(**settings: object) -> hf.Certified:
    options = {"persons": PERSONS, "max_distance": 3, "progress": False, "dataset": NAME}
    return hf.train(network(), *records(), RECIPE, **{**options, **settings})


def train_head(recipe: hf.LinearRecipe = LINEAR, **settings: object) -> CertifiedHead:
    options = {"persons": PERSONS, "classes": 2, "progress": False, "dataset": NAME}
    return hf.train_linear(*records(), recipe, **{**options, **settings})


def test_one_record_per_person_is_as_without_persons() -> None:
    """Bit for bit: all clips are whole, all shares are 1, and batches are those of the ids."""
    ids = [f"patient {number}" for number in range(60)]
    for several in (1, 3):
        recipe = replace(RECIPE, batches=several)
        with_persons = hf.train(
            network(), *records(), recipe, persons=ids, max_distance=2, progress=False
        )
        alone = hf.train(network(), *records(), recipe, ids=ids, max_distance=2, progress=False)
        for k in (0, 1, 2):
            assert torch.equal(
                with_persons.bounds(k).lower["weight"], alone.bounds(k).lower["weight"]
            )
    one = train_head(persons=ids)
    other = hf.train_linear(*records(), LINEAR, classes=2, ids=ids, progress=False)
    assert torch.allclose(one.weights, other.weights, rtol=1e-12)  # other orders of addition
    assert one.ball == other.ball


def test_a_person_with_several_records_is_clipped_like_one() -> None:
    """A person with copies of one record moves a head as one record does."""
    x, y = records()
    tripled = hf.train_linear(
        x.repeat(3, 1), y.repeat(3), LINEAR, classes=2, persons=list(range(60)) * 3, progress=False
    )
    single = hf.train_linear(x, y, LINEAR, classes=2, persons=range(60), progress=False)
    assert torch.allclose(tripled.weights, single.weights, rtol=1e-9)


def test_the_order_of_rows_does_not_matter() -> None:
    x, y = records()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    owners = [PERSONS[row] for row in order.tolist()]
    for kept in (None, 2):
        one, two = (
            train_head(max_records_per_person=kept),
            hf.train_linear(
                x[order], y[order], LINEAR, classes=2, persons=owners,
                max_records_per_person=kept, progress=False,
            ),
        )  # fmt: skip
        assert torch.equal(one.weights, two.weights)


def test_surplus_records_are_chosen_by_their_hash() -> None:
    x, y = records()
    contents, owners = content_ids(x, y), encode_owners(PERSONS, 60)
    used = used_records(owners, 2, contents, 0)
    kept = [owners[row] for row in used]
    assert len(used) == 40
    assert records_per_owner(kept).tolist() == [2] * 40
    assert len(set(kept)) == 20
    assert used_records(owners, 2, contents, 1) != used  # another key
    alone = [row for row in range(60) if PERSONS[row] == "patient 7"]
    own = used_records([b"text:patient 7"] * 3, 2, [contents[row] for row in alone], 0)
    assert [alone[row] for row in own] == [row for row in used if PERSONS[row] == "patient 7"]
    assert used_records(owners, 3, contents, 0) == list(range(60))


def test_members_hold_whole_persons() -> None:
    recipe = replace(RECIPE, batch_size=7)
    generator = (name for name in PERSONS)
    assert hf.heads.estimate_linear_training(
        *records(), LINEAR, classes=2, persons=generator
    ).seconds > 0.0  # fmt: skip
    ensemble = hf.train_ensemble(
        lambda seed: network(), *records(), recipe, members=3, max_distance=2, progress=False,
        persons=PERSONS, max_records_per_person=2,
    )  # fmt: skip
    assert ensemble.neighbours is hf.Neighbours.ADD_REMOVE_PERSON
    heads = train_head(replace(LINEAR, batch_size=7), members=3)
    assert heads.neighbours is hf.Neighbours.ADD_REMOVE_PERSON
    gone = [row for row in range(60) if PERSONS[row] != "patient 5"]
    x, y = records()
    less = hf.train_linear(
        x[gone], y[gone], replace(LINEAR, batch_size=7), classes=2, members=3, progress=False,
        persons=[PERSONS[row] for row in gone],
    )  # fmt: skip
    changed = [
        not torch.equal(one.weights, two.weights)
        for one, two in zip(heads.members, less.members, strict=True)
    ]
    assert sum(changed) == 1


def test_replace_with_heads_counts_persons() -> None:
    head = train_head(replace(LINEAR, batch_size=None), neighbours="replace")
    assert head.neighbours is hf.Neighbours.REPLACE_PERSON
    assert head.recipe.batch_size == 20
    single = train_head()
    assert head.ball.per_move == pytest.approx(2.0 * single.ball.per_move)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ids": range(60)}, "both ids and persons"),
        ({"persons": None, "max_records_per_person": 3}, "needs persons="),
        ({"persons": None, "neighbours": "add_remove_person"}, "needs persons="),
        ({"max_records_per_person": 0}, "max_records_per_person=0"),
        ({"neighbours": "remove"}, "'remove' with persons"),
        ({"persons": PERSONS[1:]}, "59 persons for 60 records"),
        ({"persons": [None, *PERSONS[1:]]}, r"persons\[0\] = None"),
        ({"persons": [float("nan"), *PERSONS[1:]]}, r"persons\[0\] = nan"),
        ({"persons": ["", *PERSONS[1:]]}, r"persons\[0\] = '': expected the owner"),
        ({"persons": [*PERSONS[1:], "  "]}, r"persons\[59\] = '  ': expected the owner"),
        ({"persons": ["nan", *PERSONS[1:]]}, "expected the owner of every record"),
        ({"persons": ["None", *PERSONS[1:]]}, "expected the owner of every record"),
        ({"persons": [" p", *PERSONS[1:]]}, "begins or ends with a space"),
        ({"persons": torch.zeros(60, 2, dtype=torch.int64)}, "persons is a Tensor"),
        ({"persons": np.zeros((60, 1), dtype=np.int64)}, "persons is a ndarray"),
        ({"persons": set(range(60))}, "persons is a set"),
        ({"persons": dict.fromkeys(range(60))}, "persons is a dict"),
        ({"persons": [7, *PERSONS[1:]]}, "both numbers and strings"),
        ({"persons": "patient"}, "persons is a str"),
    ],
)
@pytest.mark.parametrize("kind", [train, train_head])
def test_bad_arguments_are_named(kind, settings: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        kind(**settings)


def test_an_ensemble_of_exchanged_persons_is_refused() -> None:
    """The other person may belong to another member, so that one move would change two."""
    with pytest.raises(InvalidInput, match="an exchange could change two members"):
        train_head(neighbours="replace", members=3)


def test_an_exchanged_person_may_be_in_another_batch() -> None:
    """Two batches move by one unit each, which the ball of an exchange covers."""
    recipe = replace(LINEAR, batches=3, batch_size=7, clip=0.1)
    here = train_head(recipe, neighbours="replace")
    for number in range(20):
        owners = [f"other {number}" if name == "patient 3" else name for name in PERSONS]
        x, y = records()
        mine = torch.tensor([name.startswith("other") for name in owners])
        x[mine], y[mine] = -5.0 * x[mine], 1 - y[mine]
        there = hf.train_linear(
            x, y, recipe, classes=2, persons=owners, neighbours="replace", progress=False
        )
        assert float((here.weights - there.weights).norm()) <= here.radius(1)


def test_one_record_more_is_at_most_one_move_unless_it_displaces_another() -> None:
    """As docs/theory/persons.md says: for a limit of 1 it may take two moves."""
    recipe = hf.LinearRecipe(batch_size=20, travel=20.0, clip=0.4, scale=1.0)
    others = ([[1.0]] * 20, [0] * 10 + [1] * 10, list(range(20)))
    worst = {}
    for limit in (None, 2, 1):
        moves = []
        for seed in range(8):
            weights = []
            for more in ([], [([6.0], 0)]):
                mine = [([5.0], 1), *more]
                head = hf.train_linear(
                    others[0] + [x for x, _ in mine], others[1] + [y for _, y in mine],
                    replace(recipe, seed=seed), classes=2, progress=False,
                    persons=others[2] + [99] * len(mine), max_records_per_person=limit,
                )  # fmt: skip
                weights.append(head.weights)
            moves.append(float((weights[0] - weights[1]).norm()) / head.radius(1))
        worst[limit] = max(moves)
    assert worst[None] <= 1.0
    assert worst[2] <= 1.0
    assert 1.0 < worst[1] <= 2.0


def test_what_boxes_cannot_do_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not available for networks"):
        train(neighbours="replace")
    x = torch.zeros(4097, 3)
    with pytest.raises(InvalidInput, match="4,097 records: expected at most 4,096"):
        hf.train(network(), x, [0] * 4097, RECIPE, persons=["a"] * 4097, progress=False)
    hf.train(
        network(), x, [0] * 4097, RECIPE, persons=["a"] * 4097, max_records_per_person=100,
        max_distance=1, progress=False,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="number of persons is private"):
        hf.train(network(), *records(), hf.Recipe(), persons=PERSONS, progress=False)
    with pytest.raises(InvalidInput, match="number of persons is private"):
        train_head(replace(LINEAR, batch_size=None))


def test_an_overflowing_record_of_a_person_counts_as_its_clip() -> None:
    """Boxes of neighbours nest if a person's records overflow, as they do for any other."""
    x, y = records()
    x[::7] *= 3e37
    settings = {"max_distance": 3, "progress": False}
    here = hf.train(network(), x, y, replace(RECIPE, epochs=2), persons=PERSONS, **settings)
    for gone in ("patient 0", "patient 2", "patient 5"):
        kept = [row for row in range(60) if PERSONS[row] != gone]
        there = hf.train(
            network(), x[kept], y[kept], replace(RECIPE, epochs=2),
            persons=[PERSONS[row] for row in kept], **settings,
        )  # fmt: skip
        for k in (1, 2, 3):
            assert here.bounds(k).encloses(there.bounds(k - 1))
            assert there.bounds(k).encloses(here.bounds(k - 1))


def test_files_keep_the_unit(tmp_path: Path) -> None:
    limit = {"max_records_per_person": 2}
    for number, trained in enumerate((train(**limit), train_head(**limit))):
        path = tmp_path / f"{number}.holdfast"
        trained.save(path)
        again = hf.load(path)
        assert again.neighbours is hf.Neighbours.ADD_REMOVE_PERSON
        assert again.max_records_per_person == 2
        assert again.certify(records()[0][:2]).neighbours.unit == "person"


def test_a_checkpoint_of_other_owners_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    train(checkpoint=path)
    with pytest.raises(DamagedFile, match="another model, recipe, relation or data set"):
        train(checkpoint=path, persons=[f"patient {number // 2}" for number in range(60)])


def test_a_budget_per_person_is_not_spent_by_a_model_per_record(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    budget = hf.Budget(1.0, 1e-6)
    ledger.create_budget(NAME, budget, neighbours="add_remove_person", queries=10)
    per_record = hf.train_linear(
        *records(), LINEAR, classes=2, dataset=NAME, ids=range(60), progress=False
    )
    with pytest.raises(InvalidInput, match="per record.*per person"):
        hf.PrivatePredictor(per_record, ledger).ask(records()[0][:1])
    with pytest.raises(InvalidInput, match="per record.*per person"):
        hf.release_head(per_record, ledger)
    predictor = hf.PrivatePredictor(train_head(max_records_per_person=3), ledger)
    assert predictor.ask(records()[0][:1])[0].label in (0, 1)
    statement = privacy_statement(predictor.model, ledger.status(NAME))
    assert "one person, with all of their records" in statement
    assert "`add_remove_person`: one person added or removed" in statement
    assert "a public number of persons" in statement
    assert "at most 3 records per person are used" in statement
    assert "several persons who share an id" in statement
    assert "k records is protected" not in statement


def test_a_budget_per_record_is_not_spent_by_a_model_per_person(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0, 1e-6), release=True)
    with pytest.raises(InvalidInput, match="per person.*per record"):
        hf.release_head(train_head(), ledger)


def test_a_released_head_states_the_unit(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0, 1e-6), neighbours="add_remove_person", release=True)
    released = hf.release_head(train_head(max_records_per_person=2), ledger)
    assert "at most 2 records per person" in released.statement()
    assert "a public number of persons" in released.statement()
    assert str(released.guarantee).endswith("per person, add_remove_person")
    assert "one person: `add_remove_person`" in released.statement()


@pytest.mark.filterwarnings("ignore:other models have also spent")
def test_the_estimator_per_person(tmp_path: Path) -> None:
    x, y = records()
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(99.0), neighbours="add_remove_person", queries=10)
    for model in ("linear", "linear-box"):
        classifier = hf.HoldfastClassifier(
            model, classes=[0, 1], records=20, dataset=NAME, ledger=ledger, max_records_per_person=2
        )
        classifier.fit(x.numpy(), y.numpy(), persons=PERSONS)
        assert classifier.certified_.neighbours is hf.Neighbours.ADD_REMOVE_PERSON
        assert set(classifier.predict(x[:2].numpy())) <= {0, 1}
    with pytest.raises(InvalidInput, match="needs persons="):
        classifier.fit(np.asarray(x), np.asarray(y))


def test_a_plan_per_person_is_refused() -> None:
    with pytest.raises(InvalidInput, match="plans are made per record"):
        hf.plan(
            hf.Budget(1.0, 1e-6), queries=10, records=100, classes=2, features=3,
            neighbours="add_remove_person",
        )  # fmt: skip
