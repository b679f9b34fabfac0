"""Checkpoints: a ledger with many entries starts from sums, and still tells what was written.

Pages are small here, so that a ledger of some dozen entries has several.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.ledger import checkpoints, shared, transaction
from holdfast.ledger import ledger as ledger_module
from holdfast.ledger.checkpoints import EntryIndex, answer_key, request_key
from holdfast.ledger.entries import CHECKPOINTS, ENTRIES, PAGES, Entry, mask_answer
from holdfast.ledger.transaction import Reader
from holdfast.serving import PredictionRequest

from .parts import NAME, query, small_model

TENTH = hf.StableResponse(0.1)
SMALL = 8


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checkpoints, transaction, ledger_module):
        monkeypatch.setattr(module, "PAGE", SMALL)
    monkeypatch.setattr(transaction, "_ALWAYS_VERIFY_ALL", 0)


@pytest.fixture
def ledger(address: str) -> hf.Ledger:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(20.0), queries=200)
    return ledger


@pytest.fixture
def asked(ledger: hf.Ledger, model: hf.Certified) -> hf.PrivatePredictor:
    """Return a predictor that has answered thirty questions, in 31 entries."""
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    for number in range(30):
        predictor.ask(query(number), analyst="ada")
    return predictor


def execute(ledger: hf.Ledger, statement: Any) -> list[Any]:
    with ledger._database._engine.connect() as connection:
        result = connection.execute(statement)
        return list(result) if result.returns_rows else []


def reopened(ledger: hf.Ledger, model: hf.Certified) -> hf.PrivatePredictor:
    """Return a predictor of a process that has not seen anything."""
    return hf.PrivatePredictor(model, hf.Ledger(ledger.address), mechanism=TENTH)


def entered_at_start(ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the entries that a new process adds up."""
    numbers: list[int] = []
    real = Reader.enter

    def enter(self: Reader, entry: Entry) -> None:
        numbers.append(entry.number)
        real(self, entry)

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "enter", enter)
        hf.Ledger(ledger.address).status(NAME)
    return numbers


def test_a_new_process_reads_only_what_follows_the_checkpoint(
    asked: hf.PrivatePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = asked.ledger
    assert [row.number for row in execute(ledger, sa.select(CHECKPOINTS.c.number))] == [24]
    assert [row.page for row in execute(ledger, sa.select(PAGES.c.page))] == [0, 1, 2]
    assert entered_at_start(ledger, monkeypatch) == list(range(25, 32))


def test_sums_from_a_checkpoint_are_those_of_the_entries(
    asked: hf.PrivatePredictor, model: hf.Certified
) -> None:
    ledger = asked.ledger
    ledger.set_share(NAME, "bob", 0.5)
    key = hf.ledger.add_key(ledger, NAME, "bob", role="owner")
    hf.ledger.rotate_key(ledger, NAME, key.split("-")[1])
    ledger.create_budget("other", hf.Budget(1.0, 1e-5), reserve=1e-6)
    ledger.raise_budget("other", hf.Budget(2.0, 1e-5), reason="more")
    ledger.close_budget("other", reason="done")
    ledger.create_budget("sessions", hf.Budget(30.0, 1e-2), reserve=5e-3)
    far = small_model(dataset="sessions", max_distance=60)
    session = hf.PrivatePredictor(far, ledger, mechanism=hf.SparseVector(2.0, 1e-3, 2, 60))
    for number in range(20):
        session.ask(query(number), analyst="eve")
    states = []
    for open_anew in (False, True):
        opened = hf.Ledger(ledger.address) if open_anew else ledger
        states.append(opened.transact(lambda work: json.dumps(work.books.as_dict())))
        assert opened.verify() > 50
    assert states[0] == states[1]
    fresh = Reader()
    for page in ledger.pages():
        for entry in page:
            fresh.enter(entry)
    assert json.dumps(fresh.books.as_dict()) == states[0]


def test_recorded_answers_are_found_and_free(
    asked: hf.PrivatePredictor, model: hf.Certified
) -> None:
    labels = [asked.ask(query(number), analyst="ada").label for number in range(30)]
    again = reopened(asked.ledger, model)
    answers = again.ask(torch.stack([query(number) for number in range(30)]), analyst="ada")
    assert [answer.cost for answer in answers] == [0.0] * 30
    assert [answer.label for answer in answers] == labels
    assert again.ask(query(0), analyst="bob").cost == 0.1


def test_nothing_is_certified_for_a_recorded_answer(
    asked: hf.PrivatePredictor, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, certified = reopened(asked.ledger, model), []
    real = again._certify
    monkeypatch.setattr(
        again, "_certify", lambda features: certified.append(len(features)) or real(features)
    )
    again.ask(torch.stack([query(number) for number in (1, 2, 77)]), analyst="ada")
    assert certified == [1]


def test_retried_requests_are_found(asked: hf.PrivatePredictor, model: hf.Certified) -> None:
    queries = torch.stack([query(number) for number in (100, 101)])
    first = asked.ask_together([PredictionRequest(queries, "ada", "key-1")])[0]
    for number in range(40, 60):
        asked.ask(query(number), analyst="ada")
    again = reopened(asked.ledger, model)
    second = again.ask_together([PredictionRequest(queries, "ada", "key-1")])[0]
    assert [(each.label, each.cost) for each in second] == [
        (each.label, each.cost) for each in first
    ]
    other = again.ask_together([PredictionRequest(queries[:1], "ada", "key-1")])[0]
    assert isinstance(other, hf.errors.InvalidInput)


def test_a_refused_attempt_that_is_swapped_in_is_noticed(
    asked: hf.PrivatePredictor, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that the database refused has a valid seal for the same number.

    Whoever kept it and puts it into the place of the recorded answer would hand out a second draw
    for one charge. It follows the entry before it, but the next entry does not follow it.
    """
    ledger = asked.ledger
    number = 10
    before, entry = ledger.entries()[number - 2 : number]
    key = ledger._key_store.key
    attempt = entry._replace(label=1 - entry.label, about='{"nonce": "0123456789abcdef"}')
    attempt = attempt._replace(seal=attempt.compute_seal(key, before.seal))
    stored = mask_answer(attempt, key)
    values = {"label": stored.label, "about": stored.about, "seal": stored.seal}
    execute(ledger, ENTRIES.update().where(ENTRIES.c.number == number).values(**values))
    monkeypatch.setattr(shared.RunningVerification, "step", lambda *_: None)
    again = reopened(ledger, model)
    with pytest.raises(hf.errors.TamperedLedger, match="another attempt to write it"):
        again.ask(query(number - 2), analyst="ada")
    with pytest.raises(hf.errors.TamperedLedger, match="entry 11"):
        again.ledger.verify()


@pytest.mark.parametrize("how", ["changed", "hidden"])
def test_an_old_row_that_is_changed_or_hidden(
    asked: hf.PrivatePredictor, model: hf.Certified, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noticed when it is asked for, by `verify`, and by the running shared."""
    ledger, here = asked.ledger, ENTRIES.c.number == 10
    execute(
        ledger,
        ENTRIES.update().where(here).values(loss="0")
        if how == "changed"
        else ENTRIES.delete().where(here),
    )
    for _ in range(2):
        with pytest.raises(hf.errors.TamperedLedger, match="entry 10"):
            reopened(ledger, model).ask(query(8), analyst="ada")
    with pytest.raises(hf.errors.TamperedLedger, match="entry 10"):
        hf.Ledger(ledger.address).verify()
    monkeypatch.setattr(shared, "_INTERVAL", 0.0)
    monkeypatch.setattr(shared, "_ROWS", 4)
    again = hf.Ledger(ledger.address)
    with pytest.raises(hf.errors.TamperedLedger, match="entry 10"):
        [again.status(NAME) for _ in range(5)]
    with pytest.raises(hf.errors.TamperedLedger, match="entry 10"):
        again.status(NAME)


def test_an_older_checkpoint_that_is_put_back_changes_nothing(
    asked: hf.PrivatePredictor, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then more entries are read; they lead to the head all the same."""
    ledger = asked.ledger
    (old,) = execute(ledger, sa.select(CHECKPOINTS))
    for number in range(30, 50):
        asked.ask(query(number), analyst="ada")
    status = ledger.status(NAME)
    execute(ledger, CHECKPOINTS.delete())
    execute(ledger, CHECKPOINTS.insert().values(**old._mapping))
    assert entered_at_start(ledger, monkeypatch)[0] == old.number + 1
    again = reopened(ledger, model)
    assert again.ledger.status(NAME) == status
    assert again.ask(query(40), analyst="ada").cost == 0.0


@pytest.mark.parametrize("what", ["content", "nonce", "seal", "page", "no page", "number"])
def test_a_damaged_checkpoint_is_not_used(
    asked: hf.PrivatePredictor,
    model: hf.Certified,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All entries are read instead, which verifies them; the next checkpoint replaces it."""
    ledger = asked.ledger
    (row,) = execute(ledger, sa.select(CHECKPOINTS))
    if what == "page":
        page = execute(ledger, sa.select(PAGES.c.content))[0].content
        execute(ledger, PAGES.update().where(PAGES.c.page == 0).values(content=bytes(page)[::-1]))
    elif what == "no page":
        execute(ledger, PAGES.delete().where(PAGES.c.page == 1))
    elif what == "number":
        execute(ledger, CHECKPOINTS.update().values(number=10**6))
    else:
        value = getattr(row, what)
        other = bytes([value[0] ^ 1]) if what == "content" else "10"[int(value[0] == "1")]
        execute(ledger, CHECKPOINTS.update().values(**{what: other + value[1:]}))
    with caplog.at_level("WARNING"):
        assert entered_at_start(ledger, monkeypatch) == list(range(1, 32))
    assert "a checkpoint is damaged" in caplog.text
    assert ledger.address not in caplog.text  # it may hold a password
    assert reopened(ledger, model).ask(query(3), analyst="ada").cost == 0.0
    assert entered_at_start(ledger, monkeypatch) == list(range(25, 32))  # it was replaced


def test_a_request_larger_than_what_is_kept_is_answered_twice_in_one_transaction(
    ledger: hf.Ledger, model: hf.Certified
) -> None:
    """The second finds the entries of the first, which are not in the database yet."""
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    queries = torch.stack([query(number) for number in range(5 * SMALL)])
    first, second = predictor.ask_together(
        [PredictionRequest(queries, "ada", "key-1") for _ in range(2)]
    )
    assert [each.label for each in first] == [each.label for each in second]
    assert ledger.status(NAME).answers == 5 * SMALL


def test_verify_close_and_forks_while_threads_ask(
    ledger: hf.Ledger, model: hf.Certified, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No false alarm, no error, and no child that waits for a thread of its parent."""
    trace = tmp_path / "trace"
    monkeypatch.setattr(shared, "_INTERVAL", 0.0)
    ledger.raise_budget(NAME, hf.Budget(1000.0))
    predictor = hf.PrivatePredictor(model, ledger, mechanism=hf.StableResponse(0.01))
    errors: list[BaseException] = []
    stop = threading.Event()

    def client(first: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                predictor.ask(query(first + turn), analyst="ada")
                predictor.ask(query(first + 1), analyst="ada")  # recorded, soon in no memory
            except BaseException as error:
                errors.append(error)
                return

    clients = [threading.Thread(target=client, args=(10_000 * each,)) for each in range(3)]
    for thread in clients:
        thread.start()
    try:
        for turn in range(12):
            assert ledger.verify() > 0
            if turn % 3:
                continue
            ledger.close()
            child = os.fork()
            if not child:
                signal.alarm(30)
                try:
                    ledger.status(NAME)
                except BaseException:
                    trace.write_text(traceback.format_exc())
                    os._exit(1)
                os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ended == 0, trace.read_text() if trace.exists() else "the child hangs"
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert errors == []
    assert hf.Ledger(ledger.address).verify() == ledger.verify()


def test_a_checkpoint_without_its_entries_is_a_rolled_back_ledger(
    asked: hf.PrivatePredictor,
) -> None:
    execute(asked.ledger, ENTRIES.delete().where(ENTRIES.c.number >= 20))
    with pytest.raises(hf.errors.TamperedLedger, match="which was the last, is gone or changed"):
        hf.Ledger(asked.ledger.address).status(NAME)


def fail(*_: object) -> None:
    raise hf.errors.LedgerUnavailable("the disk is full")


def test_a_checkpoint_holds_only_what_the_head_covers(
    ledger: hf.Ledger, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    with monkeypatch.context() as patch:
        patch.setattr(
            type(ledger),
            "_settle",
            lambda *_: (_ for _ in ()).throw(hf.errors.LedgerUnavailable("")),
        )
        for number in range(10):
            with pytest.raises(hf.errors.LedgerUnavailable):
                predictor.ask(query(number))
        assert execute(ledger, sa.select(CHECKPOINTS)) == []
    predictor.ask(query(0))
    assert [row.number for row in execute(ledger, sa.select(CHECKPOINTS.c.number))] == [8]


def test_a_checkpoint_shows_nothing_without_the_key(asked: hf.PrivatePredictor) -> None:
    (row,) = execute(asked.ledger, sa.select(CHECKPOINTS))
    content = bytes(row.content)
    assert b"ada" not in content
    assert b"ward-7" not in content
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    assert counts.max() < 8 * len(content) / 256 + 20


def test_a_checkpoint_that_cannot_be_stored_stops_nothing(
    ledger: hf.Ledger, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    with monkeypatch.context() as patch:
        patch.setattr(type(ledger._database), "store_checkpoint", fail)
        for number in range(10):
            predictor.ask(query(number))
    predictor.ask(query(10))
    (row,) = execute(ledger, sa.select(CHECKPOINTS.c.number))
    assert row.number == 8


def test_pages_of_entries_are_verified_and_end_where_they_began(
    asked: hf.PrivatePredictor,
) -> None:
    ledger = asked.ledger
    pages = ledger.pages(after=5)
    first = next(pages)
    asked.ask(query(99), analyst="ada")
    rest = [entry.number for page in pages for entry in page]
    assert [entry.number for entry in first] == list(range(6, 14))
    assert rest == list(range(14, 32))
    assert list(ledger.pages(after=32)) == []
    assert [entry.number for entry in ledger.entries()] == list(range(1, 33))


entries = st.lists(
    st.tuples(
        st.sampled_from(["answer", "share", "key"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["ada", "bob"]),
        st.integers(0, 12),
        st.sampled_from(["", "0" * 32, "1" * 32]),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(entries, st.integers(0, 2**32))
def test_the_index_finds_what_a_dictionary_finds(
    content: list[tuple[str, str, str, int, str]], seed: int
) -> None:
    """Whether the entries came one by one or in pages."""
    whole, pages = EntryIndex(), []
    answers: dict[int, list[int]] = {}
    requests: dict[int, list[int]] = {}
    seals = random.Random(seed)
    made = []
    for number, (kind, dataset, analyst, question, tag) in enumerate(content, 1):
        about = json.dumps({"request": [tag, "c"]}) if tag and kind == "answer" else ""
        entry = Entry(number, "", kind, dataset, analyst, question=str(question), about=about)
        entry = entry._replace(seal=f"{seals.getrandbits(256):064x}")
        made.append(entry)
        if kind == "answer":
            answers.setdefault(answer_key(dataset, analyst, str(question)), []).append(number)
            if tag:
                requests.setdefault(request_key(dataset, tag), []).append(number)
        pages += whole.add(entry).values()
    indices = [whole]
    if pages:
        later = EntryIndex.of_pages(whole.digests, pages)
        assert later is not None
        for entry in made[len(pages) * SMALL :]:
            later.add(entry)
        indices.append(later)
    for index in indices:
        for kind, wanted in (("answer", answers), ("request", requests)):
            assert [sorted(found) for found in index.find(kind, list(wanted))] == list(
                wanted.values()
            )
            assert index.find(kind, [7]) == [[]]
        assert index.digests == whole.digests
        for entry in made:
            assert index.has_seal(entry.number, entry.seal)
            assert not index.has_seal(entry.number, "f" * 64)
        assert not index.has_seal(len(made) + 1, "0" * 64)
