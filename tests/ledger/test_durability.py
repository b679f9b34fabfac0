"""Commits do not wait for the disk, but answers do.

Entries that a crash removes have not been answered, and their loss is not reported as tampering.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.ledger import database
from holdfast.ledger.database import Database
from holdfast.ledger.entries import Head
from holdfast.ledger.key_store import KeyStore, Slot
from holdfast.ledger.transaction import Request, Transaction

from .parts import NAME, query, sqlite_at
from .server import Server
from .test_database import overspend

TENTH = hf.StableResponse(0.1)
_numbers = itertools.count()


def make(address: str, model: hf.Certified, answers: int = 10) -> hf.PrivatePredictor:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(answers / 10), queries=answers)
    return hf.PrivatePredictor(model, ledger, mechanism=TENTH)


def fail_flush(*_: object) -> bool:
    raise hf.errors.LedgerUnavailable("the disk does not answer")


def test_an_answer_waits_for_disk_and_head(
    address: str, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit, flush, head and answer happen in this order."""
    predictor = make(address, model)
    events: list[str] = []

    def noting(kind: type, name: str, note: str) -> None:
        real = getattr(kind, name)

        def noted(self: object, *arguments: object) -> object:
            result = real(self, *arguments)
            events.append(note)
            return result

        monkeypatch.setattr(kind, name, noted)

    noting(database.SqliteWriter, "write", "commit")
    noting(database.SqliteFlusher, "flush", "flush")
    noting(database.PostgresWriter, "write", "commit and flush")
    noting(KeyStore, "advance_head", "head")
    predictor.ask(query(1))
    assert events == (
        ["commit", "flush", "head"]
        if address.startswith("sqlite")
        else ["commit and flush", "head"]
    )


def test_what_cannot_be_flushed_is_not_answered_and_not_charged_twice(
    tmp_path: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = make(sqlite_at(tmp_path), model)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "flush", fail_flush)
        for _ in range(2):  # a recorded answer that is not on disk is not returned
            with pytest.raises(hf.errors.LedgerUnavailable):
                predictor.ask(query(1))
        with pytest.raises(hf.errors.LedgerUnavailable):  # nor can anybody else use it
            hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path)), mechanism=TENTH)
    answer = predictor.ask(query(1))
    assert (answer.cost, answer.remaining) == (0.0, 0.9)


@pytest.mark.parametrize("then", ["ask", "close", "another ledger"])
def test_a_failed_fsync_is_recovered_before_anything_is_answered(
    tmp_path: Path, home: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """After a failed fsync, the log is written and flushed elsewhere before anything is answered.

    The kernel reports a lost page only once, so a later fsync that succeeds proves nothing.
    """
    predictor = make(sqlite_at(tmp_path), model)

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(database.os, "fdatasync", broken)
        with pytest.raises(hf.errors.LedgerUnavailable, match="nothing was answered"):
            predictor.ask(query(1))
    (failure,) = home.glob("*.unflushed")
    recovered: list[bool] = []
    real = database.SqliteWriter.recover
    monkeypatch.setattr(
        database.SqliteWriter, "recover", lambda self: recovered.append(True) or real(self)
    )
    if then == "close":
        predictor.ledger.close()
    if then == "another ledger":
        predictor = hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path)), mechanism=TENTH)
    answer = predictor.ask(query(1))
    assert (answer.cost, answer.remaining) == (0.0, 0.9)
    assert recovered == [True]
    assert not failure.exists()


def test_a_flush_that_failed_elsewhere_meanwhile_stops_an_answer(
    tmp_path: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = make(sqlite_at(tmp_path), model)
    with monkeypatch.context() as patch:
        # As if a flush failed in another process at this moment.
        patch.setattr(
            Database, "flush", lambda self: predictor.ledger._key_store.note_failed_flush()
        )
        with pytest.raises(hf.errors.LedgerUnavailable, match="ask again"):
            predictor.ask(query(1))
    assert predictor.ask(query(1)).cost == 0.0


def test_a_power_cut_loses_only_unanswered_entries(
    tmp_path: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses only entries that were not answered.

    SQLite's files are reset to their state at the last flush, which is all that a disk guarantees.
    """
    file, disk = tmp_path / "ledger.db", tmp_path / "disk"
    predictor = make(sqlite_at(tmp_path), model)
    for number in range(3):
        predictor.ask(query(number))
    predictor.ledger.close()
    disk.mkdir()
    shutil.copy(file, disk / file.name)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "flush", fail_flush)
        for number in range(3, 6):
            with pytest.raises(hf.errors.LedgerUnavailable):
                predictor.ask(query(number))
    predictor.ledger.close()
    shutil.copy(disk / file.name, file)
    reopened = hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path)), mechanism=TENTH)
    assert reopened.ledger.verify() == 4
    assert [reopened.ask(query(number)).cost for number in range(5)] == [0.0, 0.0, 0.0, 0.1, 0.1]


FAILING_STATEMENT = "SELECT 1 / 0"  # replaces the statement that waits for the disk


@pytest.fixture
def lazy_server(postgres: Server) -> Iterator[str]:
    """Return the address of a database whose server does not flush its log in the background."""
    address = postgres.database(f"lazy{next(_numbers)}")
    engine = sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"),
        poolclass=sa.NullPool,
        isolation_level="AUTOCOMMIT",
    )
    for delay in ("'10s'", "DEFAULT"):
        with engine.connect() as connection:
            connection.execute(sa.text(f"ALTER SYSTEM SET wal_writer_delay = {delay}"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))
        if delay != "DEFAULT":
            yield address


def leave_unflushed(predictor: hf.PrivatePredictor, number: int) -> None:
    """Commit an entry that never reaches the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_POSTGRES_FLUSH", FAILING_STATEMENT)
        with pytest.raises(hf.errors.LedgerUnavailable):
            predictor.ask(query(number))


def test_an_unanswered_entry_lost_by_the_server_is_no_tampering(
    postgres: Server, lazy_server: str, model: hf.Certified
) -> None:
    predictor = make(lazy_server, model)
    predictor.ask(query(1))
    leave_unflushed(predictor, 2)
    postgres.crash()
    postgres.start()
    answer = predictor.ask(query(2))
    assert (answer.cost, answer.remaining) == (0.1, 0.8)  # it was lost and is charged again
    assert predictor.ledger.verify() == 3


def test_whoever_reads_an_unflushed_entry_flushes_it(
    postgres: Server, lazy_server: str, model: hf.Certified
) -> None:
    """An answer that another process recorded is flushed before it is returned."""
    predictor = make(lazy_server, model)
    leave_unflushed(predictor, 2)
    other = hf.PrivatePredictor(model, hf.Ledger(lazy_server), mechanism=TENTH)
    label = other.ask(query(2)).label
    postgres.crash()
    postgres.start()
    again = hf.PrivatePredictor(model, hf.Ledger(lazy_server), mechanism=TENTH).ask(query(2))
    assert (again.label, again.cost) == (label, 0.0)


def test_an_entry_that_was_only_read_and_then_lost_is_no_tampering(
    postgres: Server, lazy_server: str, model: hf.Certified
) -> None:
    predictor = make(lazy_server, model)
    leave_unflushed(predictor, 2)
    reader = hf.Ledger(lazy_server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_POSTGRES_FLUSH", FAILING_STATEMENT)
        with pytest.raises(hf.errors.LedgerUnavailable):
            reader.status(NAME)
    postgres.crash()
    postgres.start()
    hf.PrivatePredictor(model, hf.Ledger(lazy_server), mechanism=TENTH).ask(query(3))
    assert reader.status(NAME).answers == 1


def test_a_refusal_waits_for_the_disk_too(
    tmp_path: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal waits for the disk, too.

    It reports the remaining budget, which depends on entries that may not be on disk yet.
    """
    predictor = make(sqlite_at(tmp_path), model, answers=1)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "flush", fail_flush)
        with pytest.raises(hf.errors.LedgerUnavailable):
            predictor.ask(query(1), analyst="a")
        with pytest.raises(hf.errors.LedgerUnavailable):
            predictor.ask(query(2), analyst="b")
    with pytest.raises(hf.BudgetExhausted):
        predictor.ask(query(2), analyst="b")


def test_a_queued_head_lost_in_a_power_cut_is_ignored(
    tmp_path: Path, home: Path, model: hf.Certified
) -> None:
    """A queued head whose entry was lost in a power cut is ignored.

    If the head advanced to that entry, every later check would report tampering.
    """
    predictor = make(sqlite_at(tmp_path), model)
    (head,) = home.glob("*.head")
    before = head.read_bytes()
    predictor.ask(query(1))
    predictor.ledger._key_store.queue.write(0, Slot(Head(99, "f" * 64), "", {}))
    predictor.ledger.close()
    head.write_bytes(before)  # the head is stale: entry 2 exists and must be settled
    ledger = hf.Ledger(sqlite_at(tmp_path))
    assert ledger.status(NAME).answers == 1
    assert ledger._key_store.head().head.number == 2
    assert hf.Ledger(sqlite_at(tmp_path)).verify() == 2


def test_processes_that_wait_share_a_flush(tmp_path: Path, model: hf.Certified) -> None:
    ledgers = [make(sqlite_at(tmp_path), model).ledger, hf.Ledger(sqlite_at(tmp_path))]
    first, second = (
        ledger.transact(lambda transaction: transaction.head) and ledger._key_store
        for ledger in ledgers
    )
    flushed: list[bool] = []

    def flush() -> None:
        flushed.append(True)

    def is_entry(_: Head) -> bool:
        return True

    five, seven = (Slot(Head(number, f"{number}" * 64), "", {}) for number in (5, 7))
    second.queue.write(0, seven)  # the last committed entry that waits for a flush
    assert first.advance_head(five, flush, is_entry).number == 7
    assert second.advance_head(seven, flush, is_entry).number == 7
    assert flushed == [True]


class ConcurrentRequests:
    """Threads whose requests are all queued before the first one starts."""

    def __init__(self, ledger: hf.Ledger, works: list[Callable[[Transaction], object]]) -> None:
        self.outcomes: list[object] = [None] * len(works)
        threads = [
            threading.Thread(
                target=self._run, args=(ledger, number, work), name=f"request {number}"
            )
            for number, work in enumerate(works)
        ]
        with ledger._lock:
            for number, thread in enumerate(threads):
                thread.start()
                while len(ledger._waiting) <= number:
                    thread.join(0.001)
        for thread in threads:
            thread.join(60)

    def _run(self, ledger: hf.Ledger, number: int, work: Callable[[Transaction], object]) -> None:
        try:
            self.outcomes[number] = ledger.transact(work)
        except BaseException as error:
            self.outcomes[number] = error


def share(name: str) -> Callable[[Transaction], str]:
    def work(transaction: Transaction) -> str:
        transaction.add("share", NAME, name, about='{"share": 1.0}')
        return name

    return work


def refused(transaction: Transaction) -> None:
    raise hf.BudgetExhausted("not enough")


def fail_after_adding(transaction: Transaction) -> None:
    share("spoiled")(transaction)
    raise ValueError("after an entry was added")


def interrupted(transaction: Transaction) -> str:
    if threading.current_thread().name == "request 0":
        raise KeyboardInterrupt
    return "run by another thread"


def test_threads_that_wait_share_a_transaction(
    ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    for kind in (database.SqliteWriter, database.PostgresWriter):
        real = kind.write
        monkeypatch.setattr(
            kind,
            "write",
            lambda self, entries, real=real: written.append(len(entries)) or real(self, entries),
        )
    assert ConcurrentRequests(ledger, [share(name) for name in "abcde"]).outcomes == list("abcde")
    assert written == [5]
    assert ledger.verify() == 6


def test_an_error_of_one_thread_does_not_touch_the_others(ledger: hf.Ledger) -> None:
    """Errors of single requests neither lose nor duplicate the entries of others.

    One request is refused, one fails after adding an entry, and one swallows the refusal of an
    entry.
    """
    outcomes = ConcurrentRequests(
        ledger, [share("a"), refused, share("b"), fail_after_adding, overspend, share("c")]
    ).outcomes
    assert [outcome if isinstance(outcome, str) else type(outcome) for outcome in outcomes] == [
        "a",
        hf.BudgetExhausted,
        "b",
        ValueError,
        hf.errors.InvalidInput,
        "c",
    ]
    assert ledger.status(NAME).shares == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert ledger.verify() == 4


def test_an_interrupted_leader_leaves_the_work_of_others_to_them(ledger: hf.Ledger) -> None:
    for names in ("ab", "cd", "ef"):
        outcomes = ConcurrentRequests(ledger, [interrupted, *map(share, names)]).outcomes
        assert isinstance(outcomes[0], KeyboardInterrupt) or outcomes[0] == "run by another thread"
        assert outcomes[1:] == list(names)
    assert ledger.verify() == 7


def test_a_request_that_an_interruption_lost_is_run_by_its_own_thread(ledger: hf.Ledger) -> None:
    class Losing(deque):
        def popleft(self) -> Request:
            super().popleft()
            self.popleft = super().popleft
            raise KeyboardInterrupt

    ledger._waiting = Losing()
    outcomes = ConcurrentRequests(ledger, [share("a"), share("b"), share("c")]).outcomes
    assert sum(isinstance(outcome, KeyboardInterrupt) for outcome in outcomes) == 1
    assert sorted(outcome for outcome in outcomes if isinstance(outcome, str)) == sorted(
        ledger.status(NAME).shares
    )


def test_an_owner_without_special_rights_can_flush(postgres: Server, model: hf.Certified) -> None:
    address = postgres.database("plain")
    with sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    ).begin() as connection:
        connection.execute(sa.text("CREATE ROLE plain LOGIN"))
        connection.execute(sa.text("GRANT ALL ON SCHEMA public TO plain"))
    assert make(address.replace("holdfast@", "plain@"), model).ask(query(1)).cost == 0.1
