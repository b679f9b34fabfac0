"""Requests that are answered together are answered, charged and refused as if each came alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.ledger.accounts import Account
from holdfast.serving import PredictionRequest

from ..ledger.parts import NAME, query, small_model, sqlite_at


@pytest.fixture(scope="module")
def model() -> hf.Certified:
    return small_model()


@pytest.fixture
def predictor(model: hf.Certified, tmp_path: Path) -> Iterator[hf.PrivatePredictor]:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    yield hf.PrivatePredictor(model, ledger)
    ledger.close()


def _rows(*numbers: int) -> torch.Tensor:
    return torch.stack([query(number) for number in numbers])


def test_each_request_is_charged_and_refused_on_its_own(predictor: hf.PrivatePredictor) -> None:
    ada, wrong, eve, late, repeated = predictor.ask_together(
        [
            PredictionRequest(_rows(1, 2, 1), "ada"),
            PredictionRequest(torch.ones(1, 3), "ada"),
            PredictionRequest(_rows(1, 3), "eve"),
            PredictionRequest(_rows(*range(10, 20)), "bob"),
            PredictionRequest(_rows(2), "ada"),
        ]
    )
    assert isinstance(wrong, hf.errors.InvalidInput)
    assert isinstance(late, hf.BudgetExhausted)
    assert [answer.cost for answer in ada] == [0.1, 0.1, 0.0]
    assert [answer.cost for answer in eve] == [0.1, 0.1]
    assert [answer.cost for answer in repeated] == [0.0]
    assert repeated[0].label == ada[1].label
    assert ada[0].label == ada[2].label
    assert predictor.ledger.status(NAME).spent == 0.4
    kinds = [(entry.kind, entry.analyst) for entry in predictor.ledger.entries()[1:]]
    assert kinds == [("answer", "ada")] * 2 + [("answer", "eve")] * 2


def test_all_share_one_certification_and_one_transaction(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified, ran = [], []
    certify, run = predictor._certify, predictor.ledger._run
    monkeypatch.setattr(predictor, "_certify", lambda rows: certified.append(rows) or certify(rows))
    monkeypatch.setattr(predictor.ledger, "_run", lambda works: ran.append(works) or run(works))
    predictor.ask_together([PredictionRequest(_rows(n), f"analyst {n}") for n in range(5)])
    assert [len(rows) for rows in certified] == [5]
    assert [len(works) for works in ran] == [5]


def test_a_question_is_drawn_once_however_often_its_analyst_asks_at_once(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified, certify = [], predictor._certify
    monkeypatch.setattr(
        predictor, "_certify", lambda rows: certified.append(len(rows)) or certify(rows)
    )
    asks = [PredictionRequest(_rows(1, 2), "ada") for _ in range(4)]
    found = predictor.ask_together([*asks, PredictionRequest(_rows(1), "eve")])
    assert certified == [3]
    assert [sum(answer.cost for answer in each) for each in found] == [0.2, 0.0, 0.0, 0.0, 0.1]
    assert len({tuple(answer.label for answer in each) for each in found[:4]}) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["ada", "eve"]), st.lists(st.integers(0, 3), min_size=1)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_together_is_as_one_after_the_other(
    model: hf.Certified, tmp_path_factory: pytest.TempPathFactory, asks: list
) -> None:
    """Costs, refusals and recorded labels are those of the same requests one by one."""
    budgets = []
    for together in (True, False):
        folder = tmp_path_factory.mktemp("together")
        ledger = hf.Ledger(sqlite_at(folder), home=folder / "home")
        ledger.create_budget(NAME, hf.Budget(0.4), queries=4)
        predictor = hf.PrivatePredictor(model, ledger)
        requests = [PredictionRequest(_rows(*numbers), analyst) for analyst, numbers in asks]
        turns = [requests] if together else [[request] for request in requests]
        found = [each for turn in turns for each in predictor.ask_together(turn)]
        recorded: dict[tuple[str, int], object] = {}
        for (analyst, numbers), answers in zip(asks, found, strict=True):
            if isinstance(answers, hf.HoldfastError):
                continue
            for number, answer in zip(numbers, answers, strict=True):
                assert recorded.setdefault((analyst, number), answer.label) == answer.label
        costs = [
            type(each) if isinstance(each, Exception) else [answer.cost for answer in each]
            for each in found
        ]
        budgets.append((costs, ledger.status(NAME).spent, len(recorded)))
        ledger.close()
    assert budgets[0] == budgets[1]


def test_a_query_that_cannot_be_certified_spoils_no_other(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = predictor._certify

    def fails_on_seven(rows: torch.Tensor) -> hf.Certificate:
        if (rows == query(7)).all(1).any():
            raise hf.errors.UnsoundBounds("made up")
        return certify(rows)

    monkeypatch.setattr(predictor, "_certify", fails_on_seven)
    found = predictor.ask_together([PredictionRequest(_rows(n), "ada") for n in (6, 7, 8)])
    assert isinstance(found[1], hf.errors.UnsoundBounds)
    assert [answers[0].cost for answers in (found[0], found[2])] == [0.1, 0.1]


def test_queries_that_break_the_reader_spoil_no_other(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    features_of = predictor.features_of

    def fails_on_text(queries: object) -> object:
        if queries == "boom":
            raise RecursionError
        return features_of(queries)

    monkeypatch.setattr(predictor, "features_of", fails_on_text)
    wrong, right = predictor.ask_together(
        [PredictionRequest("boom", "eve"), PredictionRequest(_rows(1), "ada")]
    )
    assert isinstance(wrong, hf.errors.InvalidInput)
    assert right[0].cost == 0.1


def test_a_retried_request_gets_the_recorded_answers_and_costs(
    predictor: hf.PrivatePredictor,
) -> None:
    def ask(*numbers: int, key: str = "k", analyst: str = "ada") -> object:
        return predictor.ask_together([PredictionRequest(_rows(*numbers), analyst, key)])[0]

    predictor.ask(query(1), analyst="ada")
    first, spent = ask(1, 2, 2), predictor.ledger.status(NAME).spent
    assert [answer.cost for answer in first] == [0.0, 0.1, 0.0]
    assert ask(1, 2, 2) == first
    predictor.ledger.close()  # read everything again, as another process would
    assert ask(1, 2, 2) == first
    assert predictor.ledger.status(NAME).spent == spent
    other = ask(3)
    assert isinstance(other, hf.errors.InvalidInput)
    assert "idempotency key was used for other queries" in str(other)
    assert predictor.ledger.status(NAME).spent == spent
    # Keys of two analysts do not meet.
    assert [answer.cost for answer in ask(3, analyst="eve")] == [0.1]


def test_nothing_is_charged_if_the_caller_does_not_allow_it(
    predictor: hf.PrivatePredictor,
) -> None:
    seen = []

    def allow(account: Account, new: int) -> None:
        seen.append((account.name, new))
        raise hf.errors.RateLimited("made up")

    predictor.ask(query(1), analyst="ada")
    refused = predictor.ask_together([PredictionRequest(_rows(1, 2), "ada", allow=allow)])[0]
    assert isinstance(refused, hf.errors.RateLimited)
    assert set(seen) == {(NAME, 1)}
    assert predictor.ledger.status(NAME).answers == 1


def test_a_refused_request_is_not_even_certified(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, refusals would be free work, and free samples of its time."""
    predictor.ask(query(1), analyst="ada")
    monkeypatch.setattr(predictor, "_certify", lambda rows: pytest.fail("certified"))

    def allow(account: Account, new: int) -> None:
        raise hf.errors.RateLimited("made up")

    for request in (
        PredictionRequest(_rows(2), "ada", allow=allow),
        PredictionRequest(_rows(*range(20)), "ada"),  # more than the budget
    ):
        assert isinstance(predictor.ask_together([request])[0], hf.HoldfastError)


class _Counted:
    """Counts the rows that a predictor certifies."""

    def __init__(self, predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, certify = 0, predictor._certify

        def counted(features: torch.Tensor) -> hf.Certificate:
            self.rows += len(features)
            return certify(features)

        monkeypatch.setattr(predictor, "_certify", counted)


def test_a_used_idempotency_key_certifies_nothing(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time of one question could be measured any number of times for nothing."""
    counted = _Counted(predictor, monkeypatch)
    predictor.ask_together([PredictionRequest(_rows(1), "ada", "K")])
    for _ in range(3):
        (refused,) = predictor.ask_together([PredictionRequest(_rows(2), "ada", "K")])
        assert isinstance(refused, hf.errors.InvalidInput)
    assert counted.rows == 1


def test_requests_that_do_not_fit_together_are_not_certified_together(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget for three answers left, three of twenty are certified, and answered."""
    predictor.ask(_rows(*range(100, 107)))
    counted = _Counted(predictor, monkeypatch)
    names = ("ada", "bob")
    outcomes = predictor.ask_together(
        [PredictionRequest(_rows(number), names[number % 2]) for number in range(20)]
    )
    answered = [isinstance(outcome, list) for outcome in outcomes]
    assert answered == [True] * 3 + [False] * 17
    assert all(isinstance(each, hf.BudgetExhausted) for each in outcomes[3:])
    assert counted.rows == 3


def test_a_limit_counts_requests_that_are_answered_together(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _Counted(predictor, monkeypatch)

    def at_most_two(account: Account, new: int) -> None:
        if new and account.answers + new > 2:
            raise hf.errors.RateLimited("enough")

    requests = [PredictionRequest(_rows(number), "ada", allow=at_most_two) for number in range(5)]
    outcomes = predictor.ask_together(requests)
    assert [isinstance(outcome, list) for outcome in outcomes] == [True] * 2 + [False] * 3
    assert counted.rows == 2


def test_an_error_of_a_users_layer_is_one_requests_own(
    predictor: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = predictor._certify

    def fails_for_large(features: torch.Tensor) -> hf.Certificate:
        if bool((features == query(3)).all(1).any()):
            raise IndexError("a message that may hold features")
        return certify(features)

    monkeypatch.setattr(predictor, "_certify", fails_for_large)
    requests = [PredictionRequest(_rows(number), "ada") for number in (1, 3, 2)]
    good, guilty, other = predictor.ask_together(requests)
    assert isinstance(guilty, hf.errors.InvalidInput)
    assert "features" not in str(guilty)
    assert len(good) == len(other) == 1
    assert predictor.ledger.status(NAME).answers == 2
