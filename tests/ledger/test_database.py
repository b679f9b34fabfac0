"""The database: migrations, concurrent creation, and servers that become unavailable."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.accounting.renyi import Amount
from holdfast.ledger import entries as schema
from holdfast.ledger.database import Database
from holdfast.ledger.transaction import Transaction

from .parts import NAME, query, sqlite_at
from .server import Server

TENTH = hf.StableResponse(0.1)
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["holdfast.serving.predictor"])


def test_the_migrations_make_the_tables_of_the_code(ledger: hf.Ledger) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with ledger._database._engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=options), schema.METADATA)
            == []
        )
        assert schema.version(connection) == schema.VERSION
    assert (
        ScriptDirectory(str(Path(schema.__file__).parent / "migrations")).get_current_head()
        == schema.VERSION
    )


def test_a_newer_ledger_is_refused(ledger: hf.Ledger) -> None:
    with ledger._database._engine.connect() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(hf.errors.LedgerUnavailable, match="newer holdfast"):
        hf.Ledger(ledger.address).status(NAME)


def test_every_commit_is_flushed(address: str) -> None:
    database = Database(address)
    with database._engine.connect() as connection:
        if address.startswith("sqlite"):
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            # NORMAL: commits do not wait for the disk, `flush` does.
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1
        else:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
            assert connection.exec_driver_sql("SHOW fsync").scalar() == "on"


def create(address: str, home: str, number: int) -> None:
    hf.Ledger(address, home=home).create_budget(f"data {number}", hf.Budget(1.0))


def test_many_processes_may_create_a_ledger_at_once(address: str, home: Path) -> None:
    processes = [
        context.Process(target=create, args=(address, str(home), number)) for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    ledger = hf.Ledger(address, home=home)
    assert ledger.names() == [f"data {number}" for number in range(4)]
    assert ledger.verify() == 4


def test_a_server_that_crashes_loses_nothing(
    postgres: Server, home: Path, model: hf.Certified
) -> None:
    """No answer is lost if PostgreSQL stops without saving and restarts."""
    ledger = hf.Ledger(postgres.database("crash"))
    ledger.create_budget(NAME, hf.Budget(100.0), queries=1000)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    received: list[tuple[int, int]] = []
    refused: list[Exception] = []

    def client() -> None:
        for number in range(1000):
            try:
                received.append((number, predictor.ask(query(number)).label))
            except hf.errors.LedgerUnavailable as error:
                refused.append(error)
                return

    thread = threading.Thread(target=client)
    thread.start()
    while len(received) < 20 and thread.is_alive():
        time.sleep(0.01)
    postgres.crash()
    thread.join(60)
    assert refused or len(received) == 1000
    with pytest.raises(hf.errors.LedgerUnavailable, match="nothing was answered"):
        predictor.ask(query(5000))
    postgres.start()
    answers = [predictor.ask(query(number)) for number, _ in received]
    assert [answer.label for answer in answers] == [label for _, label in received]
    assert {answer.cost for answer in answers} == {0.0}
    ledger.verify()


def test_an_unreachable_server_is_named(home: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(hf.errors.LedgerUnavailable, match="127.0.0.1:1/nowhere"):
        hf.Ledger("postgresql://user:secret@127.0.0.1:1/nowhere").names()
    assert "secret" not in repr(hf.Ledger("postgresql://user:secret@127.0.0.1:1/nowhere"))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database, but long enough to be examined" * 10)
    with pytest.raises(hf.errors.LedgerUnavailable, match="not a database"):
        hf.Ledger(sqlite_at(tmp_path)).names()


def test_a_home_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(hf.errors.LedgerUnavailable, match="HOLDFAST_HOME"):
        hf.Ledger(sqlite_at(tmp_path), home=tmp_path / "file" / "home").create_budget(
            NAME, hf.Budget(1.0)
        )


def test_a_forked_child_leaves_its_parents_connection_alone(
    address: str, home: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(address, home=home)
    ledger.create_budget(NAME, hf.Budget(10.0), queries=100)
    for _ in range(10):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(3):
                    ledger.transact(
                        lambda now: now.add(
                            "answer",
                            NAME,
                            "child",
                            question=f"{os.getpid()} {now.head.number}",
                            label=1,
                        )
                    )
                status = 0
            finally:
                os._exit(status)
        ledger.close()
        assert os.waitpid(child, 0)[1] == 0
    assert ledger.verify() == 31


def test_threads_may_make_ledgers_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def make(number: int) -> None:
        try:
            hf.Ledger(f"sqlite:///{tmp_path}/{number}.db").create_budget(
                f"data {number}", hf.Budget(1.0)
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_an_interrupted_transaction_is_read_again(
    ledger: hf.Ledger, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.ledger.accounts import Accounts

    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask(query(1))
    real = Accounts.enter

    def interrupted(self: Accounts, entry: object) -> None:
        real(self, entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(Accounts, "enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predictor.ask(query(2))
    monkeypatch.undo()
    assert ledger.status(NAME).spent == 0.1
    assert predictor.ask(query(2)).remaining == 0.8


def test_a_transaction_within_a_transaction_is_refused(ledger: hf.Ledger) -> None:
    for nested in (
        lambda _: ledger.status(NAME),
        lambda _: ledger.verify(),
        lambda _: ledger.close(),
    ):
        with pytest.raises(hf.errors.InvalidInput, match="in a transaction of the ledger already"):
            ledger.transact(nested)
    assert ledger.status(NAME).answers == 0


def test_a_relative_address_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = hf.Ledger("sqlite:///ledger.db", home="keys")
    ledger.create_budget(NAME, hf.Budget(1.0))
    ledger.close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ledger.verify() == 1
    assert pickle.loads(pickle.dumps(ledger)).verify() == 1
    (tmp_path / "link").symlink_to(tmp_path / "ledger.db")
    assert hf.Ledger(f"sqlite:///{tmp_path}/link", home=tmp_path / "keys").verify() == 1


@pytest.mark.parametrize(
    "address",
    [
        "sqlite://host/x.db",
        "sqlite:///x.db?mode=ro&uri=true",
        "sqlite+aiosqlite:///x.db",
        "sqlite+none:///x.db",
        "postgresql://u:secret@h:abc/d",
    ],
)
def test_strange_addresses_are_refused_without_their_password(address: str) -> None:
    with pytest.raises(hf.errors.InvalidInput) as caught:
        hf.Ledger(address)
    assert "secret" not in str(caught.value)


def test_a_transaction_cannot_be_used_after_its_end(ledger: hf.Ledger) -> None:
    def share(transaction: Transaction) -> Transaction:
        transaction.add("share", NAME, "x", about='{"share": 1.0}')
        return transaction

    ended = ledger.transact(share)
    assert ledger.status(NAME).shares == {"x": 1.0}
    with pytest.raises(hf.errors.InvalidInput, match="the transaction has ended"):
        ended.add("share", NAME, "y", about='{"share": 1.0}')
    assert ledger.verify() == 2


def overspend(transaction: Transaction) -> None:
    """Add an entry that is refused, and swallow the error."""
    with pytest.raises(hf.errors.TamperedLedger, match="overspent"):
        transaction.add("answer", NAME, "x", Amount(10**31), question="q", label=1)
    with pytest.raises(hf.errors.InvalidInput, match="entry . was refused"):
        transaction.add("answer", NAME, "x", question="r", label=1)


def test_an_entry_that_is_refused_takes_the_whole_transaction_with_it(ledger: hf.Ledger) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="nothing was written"):
        ledger.transact(overspend)
    assert ledger.verify() == 1


def test_an_idle_connection_that_the_server_ended_is_opened_again(
    postgres: Server, home: Path, model: hf.Certified
) -> None:
    address = postgres.database("idle")
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    with sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    ).connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'idle' "
                "AND pid <> pg_backend_pid()"
            )
        )
    assert predictor.ask(query(1)).cost == 0.1
    ledger.verify()
