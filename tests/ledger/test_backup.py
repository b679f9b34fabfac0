"""Backup and restore: never a refund, never a free answer, exactly one usable ledger."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.ledger.database import Database
from holdfast.ledger.entries import Entry, mask_answer, unmask_answer

from .parts import NAME, query, small_model, sqlite_at
from .server import Server

TENTH = hf.StableResponse(0.1)
_numbers = itertools.count()


@pytest.fixture
def make_empty(address: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return a function that makes an empty database of the same kind."""

    def make() -> str:
        name = f"restored{next(_numbers)}"
        if not address.startswith("sqlite"):
            return str(request.getfixturevalue("postgres").database(name))
        (tmp_path / name).mkdir()
        return sqlite_at(tmp_path / name)

    return make


@pytest.fixture
def other(make_empty: Callable[[], str]) -> str:
    """Return the address of another empty database of the same kind."""
    return make_empty()


@pytest.fixture
def ledger(address: str) -> hf.Ledger:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(2.0), queries=20)
    return ledger


def ask(ledger: hf.Ledger, model: hf.Certified, *numbers: int) -> list[float]:
    """Ask queries, and return what each cost."""
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    return [predictor.ask(query(number), analyst="ada").cost for number in numbers]


def assert_refused(address: str) -> None:
    """Require that a database is refused, by a process that opens it now."""
    with pytest.raises(hf.errors.TamperedLedger):
        hf.Ledger(address).status(NAME)


def test_an_older_backup_charges_what_was_spent_after_it(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    ask(ledger, model, *range(5))
    assert ledger.backup(tmp_path / "b") == 6
    ask(ledger, model, *range(5, 12))
    spent = ledger.status(NAME).spent
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    assert (done.entries, done.lost, done.closed) == (6, 7, {})
    assert done.charged == {NAME: pytest.approx(0.35)}
    restored = hf.Ledger(other)
    assert restored.status(NAME).spent == spent
    # What the backup has is free; what was lost is charged again; 12 + 8 answers left in all.
    assert ask(restored, model, 0, 4) == [0.0, 0.0]
    assert ask(restored, model, *range(5, 13)) == [0.1] * 8
    with pytest.raises(hf.BudgetExhausted):
        ask(restored, model, 50)
    assert restored.verify() == len(restored.entries()) == 6 + 1 + 8
    assert [entry.number for entry in restored.entries()][5:8] == [6, 14, 15]
    with pytest.raises(hf.errors.TamperedLedger):
        ledger.status(NAME)
    assert_refused(ledger.address)


def test_an_equal_backup_charges_nothing_and_ends_the_old_database(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    ask(ledger, model, *range(5))
    ledger.backup(tmp_path / "b")
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    assert (done.entries, done.lost, done.charged) == (6, 0, {NAME: 0.0})
    restored = hf.Ledger(other)
    assert ask(restored, model, *range(5)) == [0.0] * 5
    assert restored.status(NAME).spent == 0.5
    with pytest.raises(hf.errors.TamperedLedger):
        ask(ledger, model, 9)
    assert_refused(ledger.address)


@pytest.mark.parametrize("direction", ["to postgres", "to sqlite"])
def test_a_ledger_moves_to_the_other_kind_of_database(
    postgres: Server, tmp_path: Path, model: hf.Certified, direction: str
) -> None:
    places = [sqlite_at(tmp_path), postgres.database(f"moved{next(_numbers)}")]
    here, there = places if direction == "to postgres" else reversed(places)
    ledger = hf.Ledger(here)
    ledger.create_budget(NAME, hf.Budget(2.0), queries=20)
    ask(ledger, model, *range(5))
    ledger.backup(tmp_path / "b")
    hf.ledger.restore_backup(tmp_path / "b", there)
    moved = hf.Ledger(there)
    assert ask(moved, model, *range(6)) == [0.0] * 5 + [0.1]
    assert moved.verify() == 8
    assert_refused(here)


def test_a_power_cut_that_set_the_head_back_loses_nothing(
    ledger: hf.Ledger, other: str, model: hf.Certified, home: Path, tmp_path: Path
) -> None:
    """The backup is later than the head; its own entry at the head's number must be the head."""
    ask(ledger, model, *range(3))
    (head,) = home.glob("*.head")
    before = head.read_bytes()
    ask(ledger, model, *range(3, 6))
    ledger.backup(tmp_path / "b")
    ledger.close()
    head.write_bytes(before)
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    assert (done.entries, done.lost) == (7, 0)
    restored = hf.Ledger(other)
    assert restored.status(NAME).spent == pytest.approx(0.6)
    assert ask(restored, model, *range(6)) == [0.0] * 6


def test_a_backup_of_another_history_is_refused(
    ledger: hf.Ledger, other: str, model: hf.Certified, home: Path, tmp_path: Path, address: str
) -> None:
    """After a power cut, the database went on from another entry than the backup holds."""
    ask(ledger, model, *range(2))
    ledger.backup(tmp_path / "early")
    ask(ledger, model, 2)
    ledger.backup(tmp_path / "b")
    hf.ledger.restore_backup(tmp_path / "early", other)
    with pytest.raises(hf.errors.TamperedLedger, match="not of the ledger that was used last"):
        _restore_at_head(tmp_path / "b", home, tmp_path)


def _restore_at_head(backup: Path, home: Path, folder: Path) -> None:
    """Restore a backup whose last number is that of the head, under another seal."""
    from holdfast.ledger.key_store import KeyStore, Slot

    (key,) = home.glob("*.key")
    store = KeyStore(home, key.stem)
    outside = store.head()
    fourth = outside.head._replace(number=4)
    store._head.write(0, Slot(fourth, outside.place, {}))
    store._head.write(1, Slot(fourth, outside.place, {}))
    hf.ledger.restore_backup(backup, f"sqlite:///{folder}/again.db")


def test_an_entry_that_the_head_does_not_cover_is_not_in_a_backup(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    """It may still be lost; then it would come back as an answer that nobody paid for."""
    ask(ledger, model, 0)
    process = hf.Ledger(ledger.address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(process), "_settle", _fail)
        with pytest.raises(hf.errors.LedgerUnavailable):
            process.transact(_share)
        with pytest.raises(hf.errors.LedgerUnavailable):
            ledger.backup(tmp_path / "b")  # it has seen the entry, and cannot settle it
    assert not (tmp_path / "b").exists()
    assert ledger.backup(tmp_path / "b") == 3  # settled by now


def _fail(*_: object) -> None:
    raise hf.errors.LedgerUnavailable("the disk does not answer")


def _share(transaction: Any) -> None:
    transaction.add("share", NAME, "bob", about='{"share": 0.5}')


def test_a_restored_copy_beside_the_old_database(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    """While it is being restored, the old one answers: then the restored one is refused."""
    ask(ledger, model, 0)
    ledger.backup(tmp_path / "b")
    real = Database.restore

    def meanwhile(self: Database, *given: Any) -> None:
        real(self, *given)
        ask(ledger, model, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "restore", meanwhile)
        with pytest.raises(hf.errors.CopiedLedger, match="gone on while it was restored"):
            hf.ledger.restore_backup(tmp_path / "b", other)
    assert_refused(other)
    assert ask(ledger, model, 1, 2) == [0.0, 0.1]


def test_a_restore_that_dies_before_the_head_is_written_leaves_one_usable_ledger(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    """Until one of them settles, both have the head; the first one to settle goes on."""
    ask(ledger, model, 0, 1)
    ledger.backup(tmp_path / "b")
    ask(ledger, model, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.ledger.key_store.KeyStore.replace_head", _fail)
        with pytest.raises(hf.errors.LedgerUnavailable):
            hf.ledger.restore_backup(tmp_path / "b", other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "is_copy_of", lambda *_: False)
        restored = hf.Ledger(other)
        assert restored.status(NAME).spent == pytest.approx(0.3)
    assert_refused(ledger.address)
    assert ask(restored, model, 0, 2) == [0.0, 0.1]


def test_a_failed_flush_is_forgotten_after_the_head_moved(
    ledger: hf.Ledger, make_empty: Callable[[], str], model: hf.Certified, tmp_path: Path
) -> None:
    """If the restore dies before, the old database still has to recover its log."""
    ask(ledger, model, 0)
    ledger.backup(tmp_path / "b")
    key_store = ledger.key_store()
    key_store.note_failed_flush()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.ledger.key_store.KeyStore.replace_head", _fail)
        with pytest.raises(hf.errors.LedgerUnavailable):
            hf.ledger.restore_backup(tmp_path / "b", make_empty())
    assert key_store.flush_failed
    moved = make_empty()
    hf.ledger.restore_backup(tmp_path / "b", moved)
    assert not key_store.flush_failed
    assert ask(hf.Ledger(moved), model, 0) == [0.0]


def test_a_mark_of_a_failed_flush_does_not_stop_a_ledger_of_a_server(
    postgres: Server, model: hf.Certified
) -> None:
    """A SQLite file of the same ledger, from which it was moved, may have left the mark."""
    ledger = hf.Ledger(postgres.database(f"restored{next(_numbers)}"))
    ledger.create_budget(NAME, hf.Budget(2.0), queries=20)
    key_store = ledger.key_store()
    key_store.note_failed_flush()
    assert ask(ledger, model, 0) == [0.1]
    assert not key_store.flush_failed


def test_keys_and_sessions_end(address: str, other: str, tmp_path: Path) -> None:
    """A key may have been revoked, and a session may have ended, after the backup."""
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(30.0, 1e-2), reserve=5e-3)
    hf.ledger.add_key(ledger, NAME, "ada")
    far = small_model(max_distance=60)
    session = hf.SparseVector(2.0, 1e-3, 3, 60)
    hf.PrivatePredictor(far, ledger, mechanism=session).ask(query(0), analyst="ada")
    ledger.backup(tmp_path / "b")
    hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    assert [key.revoked for key in hf.ledger.list_keys(restored, NAME)] == [True]
    before = restored.status(NAME).spent
    hf.PrivatePredictor(far, restored, mechanism=session).ask(query(1), analyst="ada")
    assert restored.status(NAME).spent > before  # a new session


def test_what_comes_back_closed(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    """Closed, raised and granted after the backup: none of them is open for more."""
    for name in ("closed", "raised", "spent"):
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
    ledger.backup(tmp_path / "b")
    ledger.close_budget("closed", reason="done")
    ledger.raise_budget("raised", hf.Budget(2.0))
    ledger.create_budget("granted", hf.Budget(1.0), queries=10)
    ask(ledger, small_model(dataset="raised"), *range(15))
    ask(ledger, small_model(dataset="spent"), *range(10))
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    assert set(done.closed) == {"closed", "raised", "granted"}
    for name in ("closed", "raised", "spent"):
        with pytest.raises(hf.BudgetExhausted):
            ask(restored, small_model(dataset=name), 100)
    assert restored.status("raised").spent == pytest.approx(1.5)
    for work in (
        lambda: restored.status("granted"),
        lambda: restored.create_budget("granted", hf.Budget(1.0), queries=10),
    ):
        with pytest.raises(hf.errors.InvalidInput, match="closed for good"):
            work()
    assert ask(restored, model, 0) == [0.1]
    assert hf.Ledger(other).verify() == len(restored.entries())


def test_what_was_lost_once_stays_closed(ledger: hf.Ledger, other: str, tmp_path: Path) -> None:
    """Also if a backup is restored that knows nothing of the first restore, and elsewhere."""
    ledger.backup(tmp_path / "b")
    ledger.create_budget("granted", hf.Budget(1.0), queries=10)
    ask(ledger, small_model(dataset="granted"), *range(10))
    hf.ledger.restore_backup(tmp_path / "b", other)
    hf.Ledger(other).status(NAME)
    second = f"sqlite:///{tmp_path}/second.db"
    assert "granted" in hf.ledger.restore_backup(tmp_path / "b", second).closed
    again = hf.Ledger(second)
    with pytest.raises(hf.errors.InvalidInput, match="closed for good"):
        again.create_budget("granted", hf.Budget(1.0), queries=10)
    with pytest.raises(hf.errors.InvalidInput, match="another ledger"):
        hf.Ledger(f"sqlite:///{tmp_path}/third.db").create_budget("granted", hf.Budget(1.0))


def test_pages_may_begin_in_a_gap(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path
) -> None:
    ask(ledger, model, *range(3))
    ledger.backup(tmp_path / "b")
    ask(ledger, model, *range(3, 9))
    hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    numbers = [entry.number for entry in restored.entries()]
    for after in range(15):
        found = [entry.number for page in restored.pages(after=after) for entry in page]
        assert found == [number for number in numbers if number > after]


def test_a_ledger_is_not_overwritten_by_its_backup(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    with pytest.raises(hf.errors.InvalidInput, match="the ledger itself"):
        ledger.backup(tmp_path / "ledger.db")
    assert ledger.status(NAME).answers == 0


def test_plain_answers_of_older_versions_are_backed_up(ledger: hf.Ledger, other: str) -> None:
    entry = Entry(7, "", "answer", NAME, "ada", question="q", label=1)
    assert mask_answer(entry, b"k" * 32) == unmask_answer(entry, b"k" * 32) == entry


def test_what_the_head_has_no_room_for_is_charged_in_full(
    address: str, other: str, tmp_path: Path
) -> None:
    ledger = hf.Ledger(address)
    names = [f"{'a' * 100} {number}" for number in range(20)]
    for name in names:
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
    ledger.backup(tmp_path / "b")
    late = f"{'b' * 100} 99"  # known to the home's list alone
    ledger.create_budget(late, hf.Budget(1.0), queries=10)
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    spent = [restored.status(name).spent for name in names]
    assert set(spent) == {0.0, 1.0}
    assert {name for name, each in zip(names, spent, strict=True) if each} == set(done.closed) - {
        late
    }
    assert late in done.closed


def test_a_release_beyond_the_budget_is_kept(address: str, other: str, tmp_path: Path) -> None:
    """A release that took the budget whole costs more once the budget is raised; also restored."""
    y = torch.arange(200) % 2
    x, recipe = (2.0 * y - 1.0)[:, None], hf.LinearRecipe(batch_size=200, travel=10.0)
    head = hf.train_linear(x, y, recipe, classes=2, dataset="head", progress=False)
    ledger = hf.Ledger(address)
    ledger.create_budget("head", hf.Budget(1.0, 1e-5), release=True)
    ledger.backup(tmp_path / "b")
    hf.release_head(head, ledger)
    account = ledger.last_known("head")
    hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    restored.status("head")
    assert restored.last_known("head").beyond == account.beyond
    assert restored.last_known("head").spent == account.spent
    with pytest.raises(hf.BudgetExhausted):
        hf.release_head(head, restored)


def test_a_backup_under_load(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path, figures: dict[str, str]
) -> None:
    """32 clients ask meanwhile; all that left, before and after, is within the limit."""
    ledger.raise_budget(NAME, hf.Budget(40.0))
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    given: list[int] = []
    stop = threading.Event()

    def client(first: int) -> None:
        for number in range(first, first + 1000):
            if stop.is_set():
                return
            try:
                predictor.ask(query(number), analyst="ada")
            except hf.HoldfastError:
                return
            given.append(number)

    clients = [threading.Thread(target=client, args=(10_000 * each,)) for each in range(32)]
    for thread in clients:
        thread.start()
    while len(given) < 60:
        stop.wait(0.01)
    count = ledger.backup(tmp_path / "b")
    while len(given) < 160:
        stop.wait(0.01)
    stop.set()
    for thread in clients:
        thread.join()
    ledger.close()
    done = hf.ledger.restore_backup(tmp_path / "b", other)
    restored = hf.Ledger(other)
    assert restored.status(NAME).spent == pytest.approx(len(given) / 10)
    again = hf.PrivatePredictor(model, restored, mechanism=TENTH)
    left = 400 - len(given)
    for number in range(left):
        again.ask(query(10**6 + number), analyst="bob")
    with pytest.raises(hf.BudgetExhausted):
        again.ask(query(10**7), analyst="bob")
    assert done.lost == len(given) + 2 - count
    figures[f"backup under load, {other.partition(':')[0]}"] = (
        f"{count} entries, {done.lost} lost and charged, {len(given)} + {left} answers left of 400"
    )


def test_a_backup_is_masked_private_and_no_ledger(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    ask(ledger, model, *range(3))
    ledger.backup(tmp_path / "b.db")
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == 0o600
    with sqlite3.connect(tmp_path / "b.db") as file:
        labels = [row[0] for row in file.execute("SELECT label FROM backup_entries")]
    assert all(label is None or label > 1000 for label in labels)
    address = f"sqlite:///{tmp_path}/b.db"
    for work in (
        lambda: hf.Ledger(address).status(NAME),
        lambda: hf.Ledger(address).create_budget("new", hf.Budget(1.0)),
        lambda: hf.ledger.restore_backup(tmp_path / "b.db", address),
    ):
        with pytest.raises(hf.errors.InvalidInput, match="this is a backup"):
            work()


@pytest.mark.parametrize("what", ["changed", "dropped", "cut", "text", "none", "number"])
def test_damaged_backups_are_refused(
    ledger: hf.Ledger, other: str, model: hf.Certified, tmp_path: Path, what: str
) -> None:
    ask(ledger, model, *range(3))
    path = tmp_path / "b"
    ledger.backup(path)
    if what in ("changed", "dropped", "cut", "number"):
        statement = {
            "changed": "UPDATE backup_entries SET loss = '0' WHERE number = 3",
            "dropped": "DELETE FROM backup_entries WHERE number = 2",
            "cut": "DELETE FROM backup_entries WHERE number = 4",
            "number": "UPDATE holdfast_backup SET number = 3",
        }[what]
        with sqlite3.connect(path) as file:
            file.execute(statement)
    elif what == "text":
        path.write_text("no backup")
    else:
        path.unlink()
    with pytest.raises((hf.errors.TamperedLedger, hf.errors.DamagedFile)):
        hf.ledger.restore_backup(path, other)
    assert ask(ledger, model, 0, 5) == [0.0, 0.1]  # nothing has happened


def test_a_place_that_has_a_ledger_is_not_overwritten(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    ledger.backup(tmp_path / "b")
    with pytest.raises(hf.errors.InvalidInput, match="there is a ledger here already"):
        hf.ledger.restore_backup(tmp_path / "b", ledger.address)
    assert ask(ledger, model, 0) == [0.1]


def test_a_restored_ledger_is_restored_again(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    """Gaps add up; checkpoints and lookups go on across them."""
    before, left = ledger, 0
    for turn in range(3):
        left += len(ask(before, model, *range(100 * turn, 100 * turn + 3)))
        before.backup(tmp_path / f"b{turn}")
        left += len(ask(before, model, 100 * turn + 50, 100 * turn + 51))
        address = f"sqlite:///{tmp_path}/turn{turn}.db"
        hf.ledger.restore_backup(tmp_path / f"b{turn}", address)
        before = hf.Ledger(address)
        assert before.status(NAME).spent == pytest.approx(left / 10)
    assert ask(before, model, 0, 101, 202) == [0.0] * 3
    assert before.verify() == len(before.entries()) < before.entries()[-1].number
    assert [len(page) for page in before.pages(after=before.entries()[4].number)] == [
        len(before.entries()) - 5
    ]


def test_a_user_backs_up_and_restores(tmp_path: Path, home: Path) -> None:
    run = CliRunner().invoke
    where = ["--ledger", sqlite_at(tmp_path)]
    run(app, ["budget", "create", "ward-7", "--epsilon", "1", *where])
    done = run(app, ["budget", "backup", str(tmp_path / "b"), *where])
    assert (done.exit_code, "1 entries" in " ".join(done.output.split())) == (0, True)
    refused = run(app, ["budget", "restore", str(tmp_path / "b"), *where])
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    shutil.move(tmp_path / "ledger.db", tmp_path / "old.db")
    done = run(app, ["budget", "restore", str(tmp_path / "b"), "--yes", "--json", *where])
    assert json.loads(done.stdout) == {
        "entries": 1,
        "lost": 0,
        "charged": {"ward-7": 0.0},
        "closed": {},
    }
    shown = run(app, ["budget", "show", *where])
    assert (shown.exit_code, "ward-7" in shown.output) == (0, True)
    old = run(app, ["budget", "show", "--ledger", f"sqlite:///{tmp_path}/old.db"])
    assert old.exit_code == 4
