"""Two copies of one ledger, in use at the same time, never spend more than one budget.

Each copy sees only its own entries. What decides is the head outside the databases: under its lock,
the head that is found and the head that is written must be entries of the same database.
"""

from __future__ import annotations

import multiprocessing
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.accounting.renyi import Amount
from holdfast.ledger import database
from holdfast.ledger.database import Database
from holdfast.ledger.entries import ENTRIES
from holdfast.ledger.transaction import Reader, Transaction

from .parts import NAME, query, small_model, sqlite_at
from .server import Server, find_binaries

ANSWERS = 12
TENTH = hf.StableResponse(0.1)

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["holdfast.serving.predictor"])


@pytest.fixture
def copies(address: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return the addresses of a ledger with a budget and of a copy of its database."""
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(ANSWERS / 10), queries=ANSWERS)
    ledger.close()
    return address, copy_of(address, request, tmp_path)


def copy_of(address: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Copy a database that nobody has open; a copy in PostgreSQL is restored from a dump."""
    if address.startswith("sqlite"):
        (folder / "copy").mkdir()
        shutil.copy(folder / "ledger.db", folder / "copy" / "ledger.db")
        return sqlite_at(folder / "copy")
    postgres: Server = request.getfixturevalue("postgres")
    return postgres.restored_from_dump(address, f"{address.rsplit('/', 1)[1]}_copy")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each copy be on a host of its own, where the file of the other cannot be seen."""
    monkeypatch.setattr(Database, "is_copy_of", lambda *_: False, raising=False)


def charge(count: int) -> Callable[[Transaction], list[int]]:
    """Return work that charges this many answers and returns the numbers of their entries."""

    def work(transaction: Transaction) -> list[int]:
        account = transaction.books.account(NAME)
        each = account.terms.meter.price(TENTH.guarantee(account.terms.neighbours))
        numbers = []
        for _ in range(count):
            number = transaction.head.number + 1
            transaction.require_affordable(account, each, "ada", "an answer")
            transaction.add(
                "answer",
                NAME,
                "ada",
                Amount(each.loss),
                question=f"{id(account)} {number}",
                label=0,
            )
            numbers.append(number)
        return numbers

    return work


class LocalHandle:
    """A charge that has been committed and announced, and waits before it is settled."""

    def __init__(self, ledger: hf.Ledger, count: int) -> None:
        self.answers: list[int] = []
        self.error: Exception | None = None
        self._committed, self._go, settle = threading.Event(), threading.Event(), ledger._settle

        def wait(request: Any) -> None:
            self._committed.set()
            assert self._go.wait(60)
            settle(request)

        ledger._settle = wait  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run, args=(ledger, count))
        self._thread.start()
        assert self._committed.wait(60)
        ledger._settle = settle  # type: ignore[method-assign]

    def _run(self, ledger: hf.Ledger, count: int) -> None:
        try:
            self.answers = ledger.transact(charge(count))
        except hf.HoldfastError as error:
            self.error = error

    def settle(self) -> None:
        self._go.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def check_one_copy_is_left(addresses: tuple[str, str], winner: int) -> None:
    assert hf.Ledger(addresses[winner]).verify() >= 1
    with pytest.raises(hf.errors.CopiedLedger, match="this is a copy of the ledger at"):
        hf.Ledger(addresses[1 - winner]).verify()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 1), (1, ANSWERS - 2), (ANSWERS - 2, 1)],
    ids=["equal number", "mine later", "mine earlier"],
)
@pytest.mark.parametrize("winner", [0, 1])
def test_the_copy_that_settles_second_answers_nothing(
    copies: tuple[str, str], first: int, second: int, winner: int
) -> None:
    """Both copies commit before either settles; the numbers of their last entries vary."""
    ledgers = [hf.Ledger(address) for address in copies]
    won, lost = LocalHandle(ledgers[winner], first), LocalHandle(ledgers[1 - winner], second)
    won.settle()
    lost.settle()
    assert (len(won.answers), lost.answers) == (first, [])
    assert isinstance(lost.error, hf.errors.CopiedLedger)
    place = ledgers[winner]._database.location
    assert f"this is a copy of the ledger at {place}, which has gone on" in str(lost.error)
    with pytest.raises(hf.errors.TamperedLedger):  # nor does anything leave it later
        ledgers[1 - winner].transact(charge(1))
    with pytest.raises(hf.errors.TamperedLedger):
        ledgers[1 - winner].status(NAME)
    assert len(ledgers[winner].transact(charge(1))) == 1
    check_one_copy_is_left(copies, winner)


@pytest.mark.usefixtures("elsewhere")
def test_the_other_copys_announcement_is_passed_over(copies: tuple[str, str]) -> None:
    """The last announcement is that of the other copy, and later than the entry to be settled."""
    mine, other = (hf.Ledger(address) for address in copies)
    won = LocalHandle(mine, 1)
    lost = LocalHandle(other, 5)
    won.settle()
    assert (won.answers, mine._key_store.head().head.number) == ([2], 2)
    lost.settle()
    assert lost.answers == []
    assert isinstance(lost.error, hf.errors.CopiedLedger)
    check_one_copy_is_left(copies, 0)


@pytest.mark.usefixtures("elsewhere")
def test_an_entry_planted_in_a_copy_does_not_stand_for_the_others_head(
    copies: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who can write the databases copies the winner's last entry into the loser's.

    The entry has the right number and seal, but does not follow from the loser's own entries.
    """
    mine, other = (hf.Ledger(address) for address in copies)
    lost = LocalHandle(other, 1)
    mine.transact(charge(4))
    entry = mine.entries()[-1]
    planted = mine._database.look_up(entry.number, entry.number)
    real = Database.look_up
    monkeypatch.setattr(Database, "look_up", lambda self, *range: [*real(self, *range), *planted])
    lost.settle()
    assert lost.answers == []
    assert isinstance(lost.error, hf.errors.CopiedLedger)


def put_rows_of_other_into_mine(mine: hf.Ledger, other: hf.Ledger) -> None:
    """As somebody can who writes the databases, while this process begins to read anew."""
    with other._database._engine.connect() as connection:
        rows = connection.execute(sa.select(ENTRIES)).mappings().all()
    mine._reader = Reader()
    with mine._database._engine.connect() as connection:
        connection.execute(ENTRIES.delete())
        connection.execute(ENTRIES.insert(), [dict(row) for row in rows])


@pytest.mark.usefixtures("elsewhere")
def test_entries_of_the_other_copy_do_not_vouch_for_ours(copies: tuple[str, str]) -> None:
    """Ours are committed; then the other's entries, which are settled, are put in their place."""
    mine, other = (hf.Ledger(address) for address in copies)
    held = LocalHandle(mine, ANSWERS)
    assert len(other.transact(charge(ANSWERS - 1))) == ANSWERS - 1
    put_rows_of_other_into_mine(mine, other)
    with suppress(hf.errors.TamperedLedger):
        mine.status(NAME)
    held.settle()
    assert held.answers == []
    assert isinstance(held.error, hf.errors.CopiedLedger)


@pytest.mark.usefixtures("elsewhere")
def test_what_is_settled_is_told_by_its_seal(copies: tuple[str, str]) -> None:
    """Our entries are settled; answers of the other copy, put into ours, have the same numbers."""
    mine, other = (hf.Ledger(address) for address in copies)
    lost = LocalHandle(other, ANSWERS)  # its process dies before it settles
    won = LocalHandle(mine, ANSWERS)
    put_rows_of_other_into_mine(mine, other)
    read = LocalHandle(mine, 0)
    won.settle()
    assert len(won.answers) == ANSWERS
    read.settle()
    assert isinstance(read.error, hf.errors.CopiedLedger)
    lost.settle()
    assert lost.answers == []


def test_a_flush_that_failed_while_closing_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.2), queries=12)
    held = LocalHandle(ledger, 1)

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(database.os, "fdatasync", broken)
        ledger._database.close()
    assert list(ledger.home.glob("*.unflushed"))
    held.settle()
    assert held.answers == []
    assert isinstance(held.error, hf.errors.LedgerUnavailable)
    assert ledger.status(NAME).answers == 1  # recovered: what was committed is on disk now


def race(model: str, connection: Any) -> None:
    """Ask from one copy after another as fast as possible, and send the number of answers."""
    certified = hf.load(model)
    Database.is_copy_of = lambda *_: False  # type: ignore[method-assign]
    while order := connection.recv():
        address, home, first = order
        ledger = hf.Ledger(address, home=home)
        predictor = hf.PrivatePredictor(certified, ledger, mechanism=TENTH)
        connection.send("ready")
        assert connection.recv() == "go"
        answers = 0
        try:
            for number in range(first, first + 2 * ANSWERS):
                predictor.ask(query(number), analyst="ada")
                answers += 1
        except hf.HoldfastError as error:
            connection.send((answers, type(error).__name__))
        ledger.close()


@pytest.mark.parametrize("races", [20, pytest.param(50, marks=pytest.mark.slow)])
def test_races_between_two_copies_never_exceed_one_budget(
    races: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    address: str,
    figures: dict[str, str],
) -> None:
    small_model().save(tmp_path / "model.holdfast")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=race, args=(str(tmp_path / "model.holdfast"), theirs), daemon=True)
        for _, theirs in pipes
    ]
    for process in processes:
        process.start()
    totals = []
    for number in range(races):
        folder = tmp_path / f"race{number}"
        folder.mkdir()
        here = sqlite_at(folder)
        if not address.startswith("sqlite"):
            name = f"{address.rsplit('/', 1)[1]}_{number}"
            here = request.getfixturevalue("postgres").database(name)
        ledger = hf.Ledger(here, home=folder / "home")
        ledger.create_budget(NAME, hf.Budget(ANSWERS / 10), queries=ANSWERS)
        ledger.close()
        both = (here, copy_of(here, request, folder))
        totals.append(_race_once([ours for ours, _ in pipes], both, folder / "home"))
    for ours, _ in pipes:
        ours.send(None)
    for process in processes:
        process.join(60)
    assert max(totals) <= ANSWERS
    figures[f"{races} races of two copies, {address.partition(':')[0]}"] = (
        f"{min(totals)} to {max(totals)} answers over both copies, budget {ANSWERS}"
    )


def _race_once(connections: list[Any], both: tuple[str, str], home: Path) -> int:
    """Race once, check that one copy is left, and return the number of answers over both."""
    for one, (connection, address) in enumerate(zip(connections, both, strict=True)):
        connection.send((address, str(home), 1000 * one))
    for connection in connections:
        assert connection.recv() == "ready"
    for connection in connections:
        connection.send("go")
    outcomes = [connection.recv() for connection in connections]
    assert {error for _, error in outcomes} <= {"BudgetExhausted", "CopiedLedger"}
    usable = 0
    for address in both:
        ledger = hf.Ledger(address, home=home)
        try:
            ledger.verify()
            usable += 1
        except hf.errors.CopiedLedger:
            pass
        ledger.close()
    assert usable == 1, outcomes
    return sum(answers for answers, _ in outcomes)


def test_a_copy_is_refused_when_it_is_opened(tmp_path: Path, model: hf.Certified) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    (tmp_path / "copy").mkdir()
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy" / "ledger.db")
    copy = sqlite_at(tmp_path / "copy")
    with pytest.raises(hf.errors.CopiedLedger, match=rf"a copy of the ledger at {tmp_path}"):
        hf.PrivatePredictor(model, hf.Ledger(copy), mechanism=TENTH)
    (tmp_path / "ledger.db").rename(tmp_path / "old.db")  # now the copy takes its place
    assert hf.Ledger(copy).status(NAME).answers == 0
    (tmp_path / "link.db").symlink_to(tmp_path / "copy" / "ledger.db")
    assert hf.Ledger(f"sqlite:///{tmp_path}/link.db").status(NAME).answers == 0


@pytest.mark.parametrize(
    "content", [b"", b"no database at all", None], ids=["empty", "text", "other"]
)
def test_another_file_where_the_ledger_was_does_not_matter(
    tmp_path: Path, content: bytes | None
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    (tmp_path / "ledger.db").rename(tmp_path / "moved.db")
    if content is None:
        hf.Ledger(sqlite_at(tmp_path), home=tmp_path / "other home").create_budget(
            NAME, hf.Budget(1.0)
        )
    else:
        (tmp_path / "ledger.db").write_bytes(content)
    assert hf.Ledger(f"sqlite:///{tmp_path}/moved.db").status(NAME).answers == 0


def test_a_standby_and_a_read_only_connection_are_refused(postgres: Server, tmp_path: Path) -> None:
    address = postgres.database("read_only")
    hf.Ledger(address).create_budget(NAME, hf.Budget(1.0), queries=10)
    with pytest.raises(hf.errors.LedgerUnavailable, match="connection is read-only"):
        hf.Ledger(f"{address}?options=-cdefault_transaction_read_only%3Don").status(NAME)
    binaries = find_binaries()
    assert binaries is not None
    primary = Server(binaries)  # with few databases: a standby copies all of them
    try:
        hf.Ledger(primary.database("primary"), home=tmp_path).create_budget(NAME, hf.Budget(1.0))
        with primary.standby() as port:
            standby = hf.Ledger(f"postgresql://holdfast@127.0.0.1:{port}/primary", home=tmp_path)
            with pytest.raises(hf.errors.LedgerUnavailable, match="server is a standby"):
                standby.status(NAME)
    finally:
        primary.stop()


def test_opening_a_ledger_again_leaves_the_locks_of_this_process(tmp_path: Path) -> None:
    """SQLite's locks are those of the process: closing any descriptor of the file releases them.

    Then another process could take the last connection for its own, and remove the log.
    """
    first = hf.Ledger(sqlite_at(tmp_path))
    first.create_budget(NAME, hf.Budget(1.0), queries=10)
    hf.Ledger(sqlite_at(tmp_path)).status(NAME)  # in this process
    other = context.Process(target=_status, args=(sqlite_at(tmp_path), str(first.home)))
    other.start()
    other.join(60)
    assert other.exitcode == 0
    assert first.status(NAME).answers == 0


def _status(address: str, home: str) -> None:
    ledger = hf.Ledger(address, home=home)
    ledger.status(NAME)
    ledger.close()


def test_a_hard_link_is_refused(tmp_path: Path) -> None:
    """SQLite has a log for each name of a file."""
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    (tmp_path / "link.db").hardlink_to(tmp_path / "ledger.db")
    with pytest.raises(hf.errors.InvalidInput, match="another name"):
        hf.Ledger(f"sqlite:///{tmp_path}/link.db").status(NAME)


def test_a_place_that_cannot_be_seen_is_left_to_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    (tmp_path / "ledger.db").rename(tmp_path / "moved.db")
    real = Path.is_file

    def is_file(self: Path) -> bool:
        if self.name == "ledger.db":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert hf.Ledger(f"sqlite:///{tmp_path}/moved.db").status(NAME).answers == 0
