"""Attacks on the ledger that once worked.

They use a database that reads answers before they are charged, forks, signals, interrupts, races
between two new ledgers, and a process that dies while it creates one.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.ledger import key_store
from holdfast.ledger.accounts import Account, make_terms
from holdfast.ledger.entries import Entry, mask_answer, unmask_answer

from .parts import NAME, query, sqlite_at
from .server import Server

TENTH = hf.StableResponse(0.1)
START = (
    "import os, signal, sys, threading, time\nimport holdfast as hf\nfrom tests.ledger.parts "
    "import NAME, query, small_model\n"
)


def run(code: str, folder: Path, seconds: float = 60.0) -> str:
    """Run code in a separate process, which must exit by itself, and return its output."""
    text = START + textwrap.dedent(code)
    environment = os.environ | {"HOLDFAST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_database_sees_nothing_of_an_answer_before_it_is_charged(
    postgres: Server, model: hf.Certified
) -> None:
    """A trigger that logs and refuses every entry learns nothing about the answer.

    It once received a fresh draw of the same answer per retry, without charge.
    """
    address = postgres.database("spying")
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    engine = sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SEQUENCE seen"))  # survives rollbacks, like a log
        connection.execute(
            sa.text(
                "CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
                "setval('seen', NEW.label); "
                "RAISE EXCEPTION 'no'; END $$"
            )
        )
        connection.execute(
            sa.text(
                "CREATE TRIGGER spy BEFORE INSERT ON holdfast_entries FOR EACH ROW EXECUTE "
                "FUNCTION spy()"
            )
        )
    seen = []
    for _ in range(40):
        with pytest.raises(hf.errors.LedgerUnavailable):
            predictor.ask(query(1))
        with engine.connect() as connection:
            seen.append(connection.execute(sa.text("SELECT last_value FROM seen")).scalar_one())
    assert len(set(seen)) == 40
    assert min(seen) > 2**40  # fails by chance with probability 40 * 2^-22 (62-bit numbers)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TRIGGER spy ON holdfast_entries"))
    label = predictor.ask(query(1)).label
    with engine.connect() as connection:
        stored = connection.execute(
            sa.text("SELECT label FROM holdfast_entries ORDER BY number DESC LIMIT 1")
        ).scalar_one()
    assert stored not in (0, 1)
    assert ledger.entries()[-1].label == label


def test_masks_are_undone_by_the_key_alone_and_differ_every_time() -> None:
    key, other = b"k" * 32, b"o" * 32
    entries = [
        Entry(
            7,
            "now",
            "answer",
            NAME,
            "ada",
            question="q",
            label=label,
            about=f'{{"nonce": "{nonce}"}}',
        )
        for label in (-1, 0, 1)
        for nonce in "ab"
    ]
    hidden = [mask_answer(entry, key).label for entry in entries]
    assert len(set(hidden)) == len(hidden)
    assert all(0 <= label < 2**62 for label in hidden)
    assert [unmask_answer(mask_answer(entry, key), key) for entry in entries] == entries
    assert all(unmask_answer(mask_answer(entry, key), other) != entry for entry in entries)
    plain = entries[0]._replace(about="", label=1)
    assert unmask_answer(plain, key) == plain  # an entry from before labels were masked


def test_a_predictors_pickle_does_not_hold_the_key(tmp_path: Path, model: hf.Certified) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask(query(1))
    content = pickle.dumps(predictor)
    assert ledger._key_store.key not in content
    assert pickle.loads(content).ask(query(1)).cost == 0.0


def test_two_new_ledgers_cannot_be_granted_the_same_name_at_once(tmp_path: Path) -> None:
    code = """
        try:
            hf.Ledger({address!r}).create_budget(NAME, hf.Budget(1.0))
            print("granted")
        except hf.errors.InvalidInput:
            print("refused")
    """
    outcomes: list[str] = []
    threads = [
        threading.Thread(
            target=lambda number=number: outcomes.append(
                run(code.format(address=f"sqlite:///{tmp_path}/{number}.db"), tmp_path)
            )
        )
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["granted", "refused", "refused"]


def test_another_spelling_of_the_same_place_does_not_refill_a_budget(
    postgres: Server, model: hf.Certified
) -> None:
    address = postgres.database("spelled")
    other = address.replace("127.0.0.1", "localhost")
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(0.1), queries=1)
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1))
    assert hf.Ledger(other).status(NAME).remaining == 0.0
    ledger.close()
    engine = sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )
    with engine.begin() as connection:
        for table in ("holdfast_entries", "holdfast_ledger", "holdfast_version"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
    for spelling in (address, other):
        with pytest.raises(
            (hf.errors.TamperedLedger, hf.errors.InvalidInput), match="there was a ledger|add up"
        ):
            hf.Ledger(spelling).create_budget(NAME, hf.Budget(0.1), queries=1)


def test_two_threads_may_fork_at_once(tmp_path: Path) -> None:
    code = f"""
        ledgers = [hf.Ledger("sqlite:///{tmp_path}/%d.db" % number) for number in range(2)]
        for number, ledger in enumerate(ledgers):
            ledger.create_budget("data %d" % number, hf.Budget(1.0))
        def fork():
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
        threads = [threading.Thread(target=fork) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(sum(ledger.verify() for ledger in ledgers))
    """
    assert run(code, tmp_path) == "2"


def test_a_child_that_outlives_its_killed_parent_holds_no_lock(tmp_path: Path) -> None:
    code = f"""
        ledger = hf.Ledger("sqlite:///{tmp_path}/ledger.db")
        ledger.create_budget(NAME, hf.Budget(1.0))
        def work():
            while True:
                ledger.status(NAME)
                ledger.set_share(NAME, "ada", 0.5)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        child = os.fork()
        if child == 0:
            os.closerange(0, 3)
            time.sleep(30)
            os._exit(0)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"HOLDFAST_HOME": str(tmp_path / "home")}
    process = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        cwd=Path(__file__).parents[2],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    child = int(process.stdout)
    try:
        assert (
            run(
                f"""print(hf.Ledger("sqlite:///{tmp_path}/ledger.db").status(NAME).answers)""",
                tmp_path,
                seconds=15,
            )
            == "0"
        )
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("call", ["ledger.close()", "ledger.status(NAME)"])
def test_a_signal_handler_that_uses_the_ledger_is_refused_and_does_not_wait_for_itself(
    tmp_path: Path, call: str
) -> None:
    code = f"""
        ledger = hf.Ledger("sqlite:///{tmp_path}/ledger.db")
        ledger.create_budget(NAME, hf.Budget(1.0))
        refused = 0
        def handler(*_):
            global refused
            try:
                {call}
            except hf.errors.InvalidInput:
                refused += 1
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        for number in range(150):
            ledger.set_share(NAME, "ada", 0.5)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(ledger.verify())
    """
    assert run(code, tmp_path) == "151"


def test_a_second_object_for_the_same_ledger_inside_a_transaction_is_refused(
    tmp_path: Path,
) -> None:
    ledger, other = hf.Ledger(sqlite_at(tmp_path)), hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0))
    assert other.status(NAME).answers == 0
    with pytest.raises(hf.errors.InvalidInput, match="holds the ledger already"):
        ledger.transact(lambda _: other.status(NAME))
    assert ledger.status(NAME).answers == 0


def test_an_interrupt_while_the_lock_is_taken_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0))
    real = key_store.fcntl.flock

    def interrupted(file: int, how: int) -> None:
        real(file, how)
        if how == key_store.fcntl.LOCK_EX:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(key_store.fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.status(NAME)
    assert (
        run(
            f"""print(hf.Ledger("sqlite:///{tmp_path}/ledger.db").status(NAME).answers)""",
            tmp_path,
            seconds=20,
        )
        == "0"
    )


def test_a_process_that_dies_while_it_creates_a_ledger_harms_no_other(
    tmp_path: Path, home: Path
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0))
    code = f"""
        real = os.write
        def dies(file, content):
            if len(content) == 4096:  # the head
                os._exit(0)
            return real(file, content)
        os.write = dies
        hf.Ledger("sqlite:///{tmp_path}/second.db").create_budget("second", hf.Budget(1.0))
    """
    run(code, tmp_path)
    assert len(list(home.glob("*.head"))) == 1  # no partial head was written
    assert hf.Ledger(sqlite_at(tmp_path)).verify() == 1
    hf.Ledger(f"sqlite:///{tmp_path}/second.db").create_budget("second", hf.Budget(1.0))


def test_minutes_are_counted_while_another_thread_enters_answers() -> None:
    """As by `last_known`, which is read outside a transaction."""
    account = Account("ward-7", make_terms(hf.Budget(1.0), "add_remove", 10, None, 0.0, False))

    class Entering(str):
        def __ge__(self, other: str) -> bool:
            account.by_minute["ada"][f"2026-01-01T00:{len(account.by_minute['ada']):02}"] = 1
            return super().__ge__(other)

    account.by_minute["ada"] = {Entering("2026-01-01T00:59"): 3, Entering("2026-01-01T00:58"): 4}
    assert account.answers_since("ada", "2026-01-01T00:58") == 7
