"""The ledger and the predictor: what is charged, free or refused.

All tests with the `ledger` or `address` fixture run on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.mechanisms.table import SYSTEM

from .parts import NAME, query, small_model, sqlite_at

TENTH = hf.StableResponse(0.1)


@pytest.fixture
def predictor(ledger: hf.Ledger, model: hf.Certified) -> hf.PrivatePredictor:
    return hf.PrivatePredictor(model, ledger, mechanism=TENTH)


def test_an_answer_shows_label_cost_and_what_is_left(predictor: hf.PrivatePredictor) -> None:
    answer = predictor.ask(query(1), analyst="ada")
    assert answer.label in (0, 1)
    assert (answer.cost, answer.remaining) == (0.1, 0.9)
    assert set(dataclasses.asdict(answer)) == {"label", "index", "cost", "remaining"}


def test_a_repeated_question_is_free_and_has_the_same_label(
    ledger: hf.Ledger, model: hf.Certified, predictor: hf.PrivatePredictor
) -> None:
    first = predictor.ask(query(1), analyst="ada")
    again = [predictor.ask(query(1), analyst="ada") for _ in range(20)]
    assert {answer.label for answer in again} == {first.label}
    assert all((answer.cost, answer.remaining) == (0.0, 0.9) for answer in again)
    reopened = hf.PrivatePredictor(
        model, hf.Ledger(ledger.address), mechanism=TENTH
    )  # as after a crash
    assert reopened.ask(query(1), analyst="ada") == again[0]


def test_another_analyst_pays_and_gets_a_fresh_draw(ledger: hf.Ledger, model: hf.Certified) -> None:
    ledger.create_budget("large", hf.Budget(100.0), queries=1000)
    predictor = hf.PrivatePredictor(
        dataclasses.replace(model, dataset="large"), ledger, mechanism=TENTH
    )
    answers = [predictor.ask(query(1), analyst=f"analyst {number}") for number in range(40)]
    assert {answer.cost for answer in answers} == {0.1}
    # At epsilon = 0.1, forty draws agree with probability below 1e-9.
    assert {answer.label for answer in answers} == {0, 1}


def test_retrained_and_other_mechanisms_and_ensembles_spend_the_same_budget(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    predictor.ask(query(1))
    other = small_model(max_distance=2)
    assert hf.PrivatePredictor(other, ledger, mechanism=TENTH).ask(query(1)).remaining == 0.8
    assert hf.PrivatePredictor(other, ledger, mechanism=hf.StableResponse(0.2)).ask(
        query(1)
    ).remaining == pytest.approx(0.6)
    # A model retrained on the same records is charged again.
    assert (
        hf.PrivatePredictor(small_model(max_distance=2), ledger, mechanism=TENTH).ask(query(1)).cost
        == 0.1
    )
    assert predictor.other_models_spent()


def test_the_budget_ends_and_nothing_is_charged_beyond(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    predictor.ask(torch.stack([query(number) for number in range(8)]))
    with pytest.raises(
        hf.BudgetExhausted,
        match=(
            "3 new answers would cost 0.3 in epsilon; left of the budget of 'ward-7': 0.2, "
            "enough for 2"
        ),
    ):
        predictor.ask(torch.stack([query(number) for number in range(8, 11)]))
    assert ledger.status(NAME).answers == 8
    assert [answer.remaining for answer in predictor.ask(torch.stack([query(8), query(9)]))] == [
        0.0,
        0.0,
    ]
    with pytest.raises(hf.BudgetExhausted, match="enough for 0"):
        predictor.ask(query(10))
    assert predictor.ask(query(9)).cost == 0.0  # recorded answers are still free
    assert ledger.verify() == 11


def test_a_refusal_takes_no_work_and_a_raised_budget_is_noticed(
    ledger: hf.Ledger, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, elsewhere = (
        hf.PrivatePredictor(model, ledger, mechanism=TENTH),
        hf.Ledger(ledger.address),
    )
    queries = torch.stack([query(number) for number in range(11)])

    def refuse(features: torch.Tensor) -> None:
        raise AssertionError("a query beyond the budget was certified")

    with monkeypatch.context() as patch:
        patch.setattr(predictor, "_certify", refuse)
        with pytest.raises(hf.BudgetExhausted, match="11 new answers would cost 1.1 in epsilon"):
            predictor.ask(queries)
    elsewhere.raise_budget(NAME, hf.Budget(1.1))
    assert len(predictor.ask(queries)) == 11


def test_a_query_asked_twice_at_once_is_charged_once(predictor: hf.PrivatePredictor) -> None:
    answers = predictor.ask(torch.stack([query(1), query(2), query(1)]))
    assert [answer.cost for answer in answers] == [0.1, 0.1, 0.0]
    assert answers[0].label == answers[2].label


def test_minus_zero_is_zero(predictor: hf.PrivatePredictor) -> None:
    predictor.ask(torch.tensor([0.0, 1.0]))
    assert predictor.ask(torch.tensor([-0.0, 1.0])).cost == 0.0


def test_preview_charges_nothing(ledger: hf.Ledger, predictor: hf.PrivatePredictor) -> None:
    predictor.ask(query(1), analyst="ada")
    about = predictor.preview(torch.stack([query(1), query(2), query(3), query(3)]), analyst="ada")
    assert (about.cost, about.new, about.remaining, about.fits) == (0.2, 2, 0.9, 9)
    assert ledger.status(NAME).spent == 0.1


def test_shares_bind_one_analyst_and_the_budget_binds_all(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    ledger.set_share(NAME, "ada", 0.2)
    assert predictor.ask(query(1), analyst="ada").remaining == 0.1
    predictor.ask(query(2), analyst="ada")
    with pytest.raises(
        hf.BudgetExhausted, match="left for 'ada', by a share of the budget of 'ward-7': 0"
    ):
        predictor.ask(query(3), analyst="ada")
    assert predictor.ask(query(3), analyst="bob").remaining == 0.7
    ledger.set_share(NAME, "bob", 1.0)
    predictor.ask(torch.stack([query(number) for number in range(10, 17)]), analyst="bob")
    with pytest.raises(hf.BudgetExhausted):
        predictor.ask(query(20), analyst="cyd")


def test_a_raised_budget_buys_more_of_the_same(ledger: hf.Ledger, model: hf.Certified) -> None:
    planned = hf.PrivatePredictor(model, ledger)
    assert planned.mechanism == TENTH
    planned.ask(torch.stack([query(number) for number in range(10)]))
    ledger.raise_budget(NAME, hf.Budget(1.2))
    assert planned.ask(query(10)).remaining == 0.1
    assert hf.PrivatePredictor(model, ledger).mechanism == TENTH
    with pytest.raises(hf.errors.InvalidInput, match="can only be raised"):
        ledger.raise_budget(NAME, hf.Budget(1.1))
    with pytest.raises(hf.errors.InvalidInput, match="with or without a delta"):
        ledger.raise_budget(NAME, hf.Budget(2.0, 1e-6))


def test_a_budget_with_delta_gives_as_many_answers_as_planned(
    address: str, model: hf.Certified
) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0, 1e-6), queries=30)
    predictor = hf.PrivatePredictor(model, ledger)
    assert predictor.mechanism == hf.BudgetedResponse(hf.Budget(1.0, 1e-6), 30)
    assert predictor.preview(query(0)).fits == 30
    predictor.ask(torch.stack([query(number) for number in range(30)]))
    with pytest.raises(hf.BudgetExhausted, match="Rényi divergence of order"):
        predictor.ask(query(30))
    assert ledger.status(NAME).remaining < 1e-9


def test_mechanisms_that_do_not_fit_are_refused_at_the_start(
    ledger: hf.Ledger, model: hf.Certified
) -> None:
    for mechanism, reason in [
        (hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 10), "delta = 0 is spent in epsilon"),
        (hf.StableResponse(0.1, 1e-9), "delta of its own"),
        (hf.SparseVector(5.0, 1e-9, 3, 100), "delta of its own"),
        (hf.StableResponse(1.01), "more than the whole budget"),
        (hf.mechanisms.NoisyArgmax(0.1), "votes"),
        ("stable", "expected one of holdfast's"),
    ]:
        with pytest.raises(hf.errors.InvalidInput, match=reason):
            hf.PrivatePredictor(model, ledger, mechanism=mechanism)
    with pytest.raises(hf.errors.InvalidInput, match="counted per record, under 'add_remove'"):
        hf.PrivatePredictor(small_model(neighbours="replace"), ledger)
    with pytest.raises(hf.errors.InvalidInput, match="no budget for the data set 'elsewhere'"):
        hf.PrivatePredictor(small_model("elsewhere"), ledger)
    ledger.create_budget("renyi", hf.Budget(1.0, 1e-5), order=40.0)
    with pytest.raises(hf.errors.InvalidInput, match="order=40.0"):
        hf.PrivatePredictor(
            dataclasses.replace(model, dataset="renyi"),
            ledger,
            mechanism=hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 10, order=20.0),
        )


def test_bad_budgets_names_and_queries_are_refused(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    for call, reason in [
        (lambda: ledger.create_budget(NAME, hf.Budget(1.0)), "has a budget already"),
        (lambda: ledger.create_budget("", hf.Budget(1.0)), "1 to 200 printable"),
        (lambda: ledger.create_budget("x", 1.0), "expected hf.Budget"),
        (lambda: ledger.create_budget("x", hf.Budget(1.0), neighbours="remove"), "unlearning"),
        (lambda: ledger.create_budget("x", hf.Budget(1.0, 1e-6), reserve=1e-6), "less than delta"),
        (lambda: ledger.create_budget("x", hf.Budget(1.0), order=2.0), "no Rényi order"),
        (
            lambda: ledger.create_budget("x", hf.Budget(0.01, 1e-6), order=1.5),
            "leave no Rényi budget",
        ),
        (lambda: ledger.set_share(NAME, "ada", 1.5), "from 0 to 1"),
        (lambda: ledger.status("elsewhere"), "no budget for"),
        (lambda: predictor.ask(torch.zeros(0, 2)), "no queries"),
        (lambda: predictor.ask(torch.tensor([torch.nan, 0.0])), "NaN"),
        (lambda: predictor.ask(torch.zeros(3)), "shape"),
        (lambda: predictor.ask(query(1), analyst=""), "analyst=''"),
        (lambda: predictor.ask(query(1), analyst="a\x00b"), "printable"),
        (lambda: hf.Ledger("mysql://localhost/x"), "not supported"),
        (lambda: hf.Ledger("ledger.db"), "expected an address"),
        (lambda: hf.Ledger("sqlite://"), "in memory"),
        (lambda: hf.Ledger("sqlite:////no/such/folder/ledger.db"), "does not exist"),
    ]:
        with pytest.raises(hf.errors.InvalidInput, match=reason):
            call()
    assert ledger.status(NAME).answers == 0


def test_a_ledger_is_made_by_its_first_budget_only(address: str, model: hf.Certified) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="no ledger here"):
        hf.PrivatePredictor(model, hf.Ledger(address))
    with pytest.raises(hf.errors.InvalidInput, match="no ledger here"):
        hf.Ledger(address).verify()


def test_a_pickled_ledger_holds_only_its_address(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    content = pickle.dumps(ledger)
    assert ledger._key_store.key not in content
    assert len(content) < 1000
    assert pickle.loads(content).status(NAME) == ledger.status(NAME)


def test_threads_share_a_ledger(ledger: hf.Ledger, model: hf.Certified) -> None:
    ledger.create_budget("many", hf.Budget(100.0), queries=1000)
    predictor = hf.PrivatePredictor(
        dataclasses.replace(model, dataset="many"), ledger, mechanism=TENTH
    )
    threads_before = torch.get_num_threads()
    threads = [
        threading.Thread(
            target=lambda name=name: [
                predictor.ask(query(number), analyst=name) for number in range(20)
            ]
        )
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.status("many").answers == 80
    assert ledger.status("many").spent == pytest.approx(8.0)
    assert torch.get_num_threads() == threads_before
    ledger.verify()


def test_raw_features_and_plain_labels_are_never_stored(
    tmp_path: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    features = torch.tensor([0.123456789, -7.654321])
    hf.PrivatePredictor(model, ledger).ask(features)
    entry = ledger.entries()[-1]
    ledger.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert features.numpy().tobytes() not in stored
    assert b"0.1234" not in stored
    assert len(entry.question) == 64
    # Another home has another key, so the same question has another hash.
    other_home = hf.Ledger(sqlite_at(tmp_path / "home"), home=tmp_path / "other")
    other_home.create_budget(NAME, hf.Budget(1.0), queries=10)
    hf.PrivatePredictor(model, other_home).ask(features)
    assert other_home.entries()[-1].question != entry.question


class Counting:
    """An entropy source that counts the numbers drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self) -> int:
        self.drawn += 1
        return SYSTEM.draw()


@pytest.mark.parametrize(
    "mechanism", [TENTH, hf.SparseVector(50.0, 1e-3, 5, 30)], ids=["answers", "sessions"]
)
def test_the_work_is_the_same_for_stable_and_unstable_queries_and_none_for_recorded_ones(
    tmp_path: Path, mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.layers import Network

    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(100.0, 1e-2), reserve=1e-3)
    entropy, boxes = Counting(), []
    model = small_model(max_distance=30)
    certificate = model.certify(torch.tensor([[3.0, 3.0], [0.0, 0.0]]))
    assert certificate.distances[0] > 0
    monkeypatch.setattr(
        Network, "box", lambda self, box, real=Network.box: boxes.append(1) or real(self, box)
    )
    predictor = hf.PrivatePredictor(model, ledger, mechanism=mechanism, entropy=entropy)

    def work(*queries: list[float]) -> tuple[int, int]:
        entropy.drawn, boxes[:] = 0, []
        predictor.ask(torch.tensor(queries))
        return entropy.drawn, len(boxes)

    each = {work(features) for features in ([3.0, 3.0], [0.0, 0.0], [-1e5, 2.0], [0.01, -0.02])}
    assert len(each) == 1
    # Recorded queries take no work, so their time cannot be measured again.
    assert work([3.0, 3.0]) == work([0.0, 0.0], [3.0, 3.0]) == (0, 0)
    assert work([3.0, 3.0], [5.0, 5.0], [5.0, 5.0]) in each  # one recorded, one asked twice


def unstable(model: hf.Certified, count: int) -> torch.Tensor:
    """Return queries that are certified at no distance."""
    line = torch.linspace(-3, 3, 20_001)[:, None].expand(-1, 2)
    return line[model.certify(line).distances == 0][:count]


def test_a_sparse_vector_session_is_durable(address: str) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(45.0, 1e-2), reserve=5e-3)
    model, mechanism = small_model(max_distance=40), hf.SparseVector(10.0, 1e-3, 2, 40)

    def session() -> hf.PrivatePredictor:
        """Return a new predictor, as after a restart of the process."""
        return hf.PrivatePredictor(model, hf.Ledger(address), mechanism=mechanism)

    price = session().preview(torch.tensor([3.0, 3.0])).cost
    assert session().ask(torch.tensor([3.0, 3.0])).cost == price > 5.0
    assert session().preview(torch.tensor([4.0, 4.0])).cost == 0.0
    answers = [session().ask(features) for features in unstable(model, 4)]
    assert [answer.label for answer in answers] == [hf.mechanisms.UNSTABLE] * 4
    # A session ends after two unstable verdicts.
    assert [answer.cost for answer in answers] == [0.0, 0.0, price, 0.0]
    assert session().ask(unstable(model, 4)[0]).cost == 0.0  # recorded
    more = unstable(model, 20)
    with pytest.raises(
        hf.BudgetExhausted,
        match="ended, with the session, after 6 of 20 queries; those are recorded",
    ):
        session().ask(more)
    assert [answer.label for answer in session().ask(more[:6])] == [hf.mechanisms.UNSTABLE] * 6
    with pytest.raises(hf.BudgetExhausted, match="a new session would cost"):
        session().ask(more[6])
    sessions = [entry for entry in ledger.entries() if entry.kind == "session"]
    assert len(sessions) == 3
    assert ledger.status(NAME).spent == pytest.approx(3 * price)


def test_the_secret_of_a_session_follows_from_the_key_alone(address: str) -> None:
    """All verdicts of a session use one head start, whichever process computes them.

    It is derived from the key, and the verdicts agree with the tables.
    """
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(900.0, 0.5), reserve=0.4)
    model = small_model(max_distance=40)
    mechanism = hf.SparseVector(100.0, 0.01, 100, 40)

    class Middle:
        def draw(self) -> int:
            return 1 << 127

    features = torch.stack([torch.tensor([0.02 * number, 0.02 * number]) for number in range(60)])
    drawn = [
        answer.label
        for answer in hf.PrivatePredictor(model, ledger, mechanism=mechanism, entropy=Middle()).ask(
            features, analyst="a"
        )
    ]
    again = [
        answer.label
        for answer in hf.PrivatePredictor(
            model, hf.Ledger(address), mechanism=mechanism, entropy=Middle()
        ).ask(features, analyst="b")
    ]
    assert drawn == again
    certificate = model.certify(features)
    heads = [
        head
        for head in range(len(mechanism.head_start_weights))
        if drawn
        == [
            hf.mechanisms.UNSTABLE
            if mechanism.unstable_probability(distance, head) > 1 << 127
            else label
            for label, distance in zip(
                certificate.labels.tolist(), certificate.distances.tolist(), strict=True
            )
        ]
    ]
    assert heads


def test_a_query_that_overflows_is_answered_like_any_other(ledger: hf.Ledger) -> None:
    """A query that overflows is answered and charged; a refusal would reveal the private model."""
    model = small_model()
    wide = {
        name: Interval(interval.lower - 1e35, interval.upper + 1e35)
        for name, interval in model.ladder[-1].box.items()
    }
    exploded = dataclasses.replace(
        model, ladder=(*model.ladder[:-1], hf.networks.ParameterBounds(1, wide))
    )
    answer = hf.PrivatePredictor(exploded, ledger).ask([1e30, -1e30], analyst="ada")
    assert answer.label in (0, 1)
    assert answer.cost > 0


def test_what_is_recorded_stays_free_when_a_share_is_used_up(
    ledger: hf.Ledger, predictor: hf.PrivatePredictor
) -> None:
    predictor.ask(query(1), analyst="ada")
    ledger.set_share(NAME, "ada", 0.05)
    again = predictor.ask(query(1), analyst="ada")
    assert (again.cost, again.remaining) == (0.0, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.6, 0.7])
def test_shares_are_the_decimals_that_people_write(
    tmp_path: Path, model: hf.Certified, share: float
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.set_share(NAME, "ada", share)
    assert hf.PrivatePredictor(model, ledger).preview(query(1), analyst="ada").fits == round(
        10 * share
    )


def test_every_analyst_pays_for_sessions_of_their_own(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(45.0, 1e-2), reserve=5e-3)
    ledger.set_share(NAME, "bob", 0.0)
    session = hf.PrivatePredictor(
        small_model(max_distance=40), ledger, mechanism=hf.SparseVector(10.0, 1e-3, 2, 40)
    )
    assert session.ask(torch.tensor([3.0, 3.0]), analyst="ada").cost > 5.0
    assert session.ask(torch.tensor([4.0, 4.0]), analyst="ada").cost == 0.0
    with pytest.raises(hf.BudgetExhausted, match="a new session"):
        session.ask(torch.tensor([3.0, 3.0]), analyst="bob")
    with pytest.raises(hf.errors.InvalidInput, match="certified to 40"):
        hf.PrivatePredictor(
            small_model(max_distance=40), ledger, mechanism=hf.SparseVector(10.0, 1e-3, 2, 60)
        )


def test_one_query_in_every_form(ledger: hf.Ledger, predictor: hf.PrivatePredictor) -> None:
    import numpy as np

    first = predictor.ask([0.5, 1.0])
    assert first.cost == 0.1
    for form in (torch.tensor([0.5, 1.0]), np.array([0.5, 1.0]), (0.5, 1.0)):
        assert predictor.ask(form).cost == 0.0
    for form in (torch.tensor([[0.5, 1.0]]), np.array([[0.5, 1.0]]), [[0.5, 1.0]]):
        (answer,) = predictor.ask(form)
        assert answer.cost == 0.0


def test_ensembles_made_by_hand_are_refused(model: hf.Certified) -> None:
    for members in ((model, model), (model, dataclasses.replace(model, dataset="elsewhere"))):
        with pytest.raises(hf.errors.InvalidInput, match="train_ensemble"):
            hf.models.CertifiedEnsemble(members)
