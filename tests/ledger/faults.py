"""Fault injection: a fixed script of ledger operations in which one call to the system fails.

Every call that the ledger makes to the operating system or to the database driver, and that writes
something or reads what others may have written, has a number. In each run the call with one number
fails before it does anything, fails after it has done its work, or the process is killed there.

Run as a program, this module prepares everything once, and then forks a process for every run that
it is asked for on standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import torch

import holdfast as hf
from holdfast.ledger import database, key_store

from .parts import NAME, query, small_model

TENTH = hf.StableResponse(0.1)
PAST_THE_BUDGET = 24  # the operation that is refused in any case
RELEASED = "ward-8"
SYSTEM_CALLS = ("open", "write", "pwrite", "pread", "fsync", "fdatasync")
PATH_CALLS = ("replace", "unlink", "touch", "mkdir", "read_text")


class FaultInjector:
    """Counts calls, and lets the one with a given number fail, or kills the process there."""

    def __init__(self, number: int, mode: str) -> None:
        self.calls: list[str] = []
        self._number, self._mode = number, mode

    def wrap(self, name: str, real: Callable[..., Any], fail: Callable[..., None]) -> Any:
        """Return `real` as a call that is counted; `fail` raises the error of a failed call."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) != self._number:
                return real(*arguments, **options)
            if self._mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._mode == "fail after":
                real(*arguments, **options)
            fail(*arguments)
            raise AssertionError("the call did not fail")

        return call


def _fail_system(*_: Any) -> None:
    raise OSError(5, "Input/output error")


def _fail_sqlite(*_: Any) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def _fail_postgres(cursor: Any, *_: Any) -> None:
    cursor.connection.pgconn.finish()
    raise psycopg.OperationalError("the connection is lost")


class _Proxy:
    """A module of which some functions are replaced."""

    def __init__(self, module: Any, replaced: dict[str, Any]) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def install(faults: FaultInjector) -> None:
    """Count the calls of the ledger in this process."""
    system = {name: faults.wrap(name, getattr(os, name), _fail_system) for name in SYSTEM_CALLS}
    for module in (database, key_store, key_store, database):
        module.os = _Proxy(os, system)  # type: ignore[attr-defined]
    lock = faults.wrap("flock", key_store.fcntl.flock, _fail_system)
    real_lock, unlock = key_store.fcntl.flock, key_store.fcntl.LOCK_UN
    for module in (key_store, key_store):
        module.fcntl = _Proxy(  # type: ignore[attr-defined]
            module.fcntl,
            {"flock": lambda file, kind: (real_lock if kind == unlock else lock)(file, kind)},
        )
    for name in PATH_CALLS:
        real = getattr(Path, name)
        counted = faults.wrap(f"Path.{name}", real, _fail_system)
        setattr(Path, name, _only_for_the_ledger(real, counted))
    _install_in_sqlite(faults)
    for kind in (psycopg.Cursor, psycopg.ClientCursor):
        if "execute" in vars(kind) or kind is psycopg.Cursor:
            kind.execute = faults.wrap("execute", kind.execute, _fail_postgres)  # type: ignore


def _only_for_the_ledger(real: Callable[..., Any], counted: Callable[..., Any]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        return (counted if caller.startswith("holdfast.ledger") else real)(*arguments, **options)

    return call


def _install_in_sqlite(faults: FaultInjector) -> None:
    class Cursor(sqlite3.Cursor):
        execute = faults.wrap("execute", sqlite3.Cursor.execute, _fail_sqlite)

    class Connection(sqlite3.Connection):
        execute = faults.wrap("execute", sqlite3.Connection.execute, _fail_sqlite)
        executemany = faults.wrap("executemany", sqlite3.Connection.executemany, _fail_sqlite)

        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

    connect = sqlite3.dbapi2.connect
    sqlite3.dbapi2.connect = lambda *given, **options: connect(  # type: ignore[assignment]
        *given, **options, factory=Connection
    )


class Script:
    """About thirty operations on a ledger: grants, asks, shares, a raise, a release, a key."""

    def __init__(self, address: str, second: str, home: Path, log: Path) -> None:
        self.address, self.second, self.home, self._log = address, second, home, log
        self.ledger = hf.Ledger(address, home=home)
        self.predictor: hf.PrivatePredictor | None = None

    def run(self) -> None:
        """Run all operations; one that fails with an error of ours is tried once more."""
        for number, operation in enumerate(self._operations()):
            for _ in range(2):
                try:
                    answer = operation()
                except hf.HoldfastError as error:
                    self._note(operation=number, error=f"{type(error).__name__}: {error}")
                    continue
                except BaseException:
                    self._note(operation=number, raw=traceback.format_exc())
                    raise
                self._note(operation=number, answer=answer, head=read_head(self.home))
                break
        self._note(ended=True)

    def _note(self, **facts: Any) -> None:
        """Write a line to the log, as a client would keep an answer."""
        with self._log.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def _operations(self) -> list[Callable[[], Any]]:
        def ask(*numbers: int, analyst: str = "ada") -> Callable[[], Any]:
            def work() -> Any:
                predictor = self._predictor()
                answers = predictor.ask_all(
                    torch.stack([query(number) for number in numbers]), analyst=analyst
                )
                return [
                    [analyst, number, each.label]
                    for number, each in zip(numbers, answers, strict=True)
                ]

            return work

        def reopen() -> None:
            self.ledger.close()
            self.ledger, self.predictor = hf.Ledger(self.address, home=self.home), None

        return [
            lambda: _granted(self.ledger, NAME, hf.Budget(1.0), queries=10),
            ask(1),
            ask(2),
            ask(1, 2, 3),
            lambda: self.ledger.set_share(NAME, "bob", 0.5) and None,
            ask(1, analyst="bob"),
            lambda: self.ledger.status(NAME).answers and None,
            lambda: self.ledger.verify() and None,
            reopen,
            ask(4),
            ask(5, analyst="bob"),
            ask(3),
            lambda: hf.ledger.add_key(self.ledger, NAME, "ada") and None,
            lambda: self._raised(hf.Budget(1.2)),
            ask(6),
            ask(7, 8),
            lambda: _granted(self.ledger, RELEASED, hf.Budget(1.0, 1e-5), queries=10, release=True),
            lambda: [RELEASED, hf.release_head(HEAD, self.ledger).weights.tolist()],
            lambda: [RELEASED, hf.release_head(HEAD, self.ledger).weights.tolist()],
            reopen,
            ask(9),
            lambda: len(self.ledger.entries()) and None,
            ask(10),
            ask(11),
            ask(12),
            ask(1),
            lambda: self._closed(RELEASED),
            ask(1, analyst="bob"),
            lambda: self.ledger.verify() and None,
            lambda: self.ledger.backup(self.home.parent / "backup") and None,
            self._restore,
            ask(1),
            lambda: self.ledger.verify() and None,
            lambda: self.ledger.close(),
        ]

    def _restore(self) -> None:
        """Go on in another database; if the first try has stored everything, it is used."""
        self.ledger.close()
        self.predictor = None
        with suppress(hf.errors.InvalidInput):  # there is a ledger there already
            hf.ledger.restore_backup(self.home.parent / "backup", self.second, home=self.home)
        self.ledger = hf.Ledger(self.second, home=self.home)
        self.ledger.status(NAME)

    def _predictor(self) -> hf.PrivatePredictor:
        if self.predictor is None:
            self.predictor = hf.PrivatePredictor(MODEL, self.ledger, mechanism=TENTH)
        return self.predictor

    def _raised(self, budget: hf.Budget) -> None:
        if self.ledger.status(NAME).budget != budget:  # the first try may have been stored
            self.ledger.raise_budget(NAME, budget)

    def _closed(self, name: str) -> None:
        if not self.ledger.status(name).closed:
            self.ledger.close_budget(name, reason="done")


def _granted(ledger: hf.Ledger, name: str, budget: hf.Budget, **options: Any) -> None:
    try:
        ledger.create_budget(name, budget, **options)
    except hf.errors.InvalidInput as error:
        if "has a budget already" not in str(error):  # the first try may have been stored
            raise


def read_head(home: Path) -> int:
    """Return the number in the head file; 0 if there is none."""
    return max(
        (
            about["number"]
            for path in home.glob("*.head")
            for at in (0, key_store.SLOT_BYTES)
            if (about := key_store.parse_slot(path.read_bytes()[at : at + key_store.SLOT_BYTES]))
        ),
        default=0,
    )


def usable(addresses: list[str], home: Path) -> hf.Ledger:
    """Return the ledger that goes on: the first one, or the second if it was restored."""
    ledgers = []
    for address in addresses:
        ledger = hf.Ledger(address, home=home)
        try:
            _granted(ledger, NAME, hf.Budget(1.0), queries=10)  # if the run ended before that
            ledgers.append(ledger)
            ledger.status(NAME)
        except (hf.errors.TamperedLedger, hf.errors.InvalidInput):
            ledgers = [each for each in ledgers if each is not ledger]
            ledger.close()
    (found,) = ledgers
    return found


def check(addresses: list[str], home: Path, log: Path) -> list[str]:
    """Return what is wrong after a run, as a process finds it that has not seen the run."""
    lines = _lines(log)
    wrong = [line["raw"] for line in lines if "raw" in line]
    head = read_head(home)
    if head < max((line["head"] for line in lines if "head" in line), default=0):
        wrong.append(f"the head went back to {head}")
    ledger = usable(addresses, home)
    before = ledger.entries()
    questions = [(entry.analyst, entry.question) for entry in before if entry.kind == "answer"]
    if len(set(questions)) != len(questions):
        wrong.append("a question was charged twice")
    predictor = hf.PrivatePredictor(MODEL, ledger, mechanism=TENTH)
    for line in lines:
        answers = line.get("answer") or []
        if answers[:1] == [RELEASED]:
            released = hf.release_head(HEAD, ledger).weights.tolist()
            if released != answers[1]:
                wrong.append("a release that was returned is not in the ledger")
            continue
        for analyst, number, label in answers:
            again = predictor.ask(query(number), analyst=analyst)
            if (again.label, again.cost) != (label, 0.0):
                wrong.append(f"the answer to query {number} of {analyst} is not in the ledger")
    if ledger.verify() != len(before):  # which also refuses a sum beyond the budget
        wrong.append("asking again was charged")
    predictor.ask(query(1), analyst="ada")  # the ledger works again
    ledger.close()
    return wrong


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def run_once(order: dict[str, Any]) -> dict[str, Any]:
    """Run the script with one fault in a process of its own, and check in another one."""
    folder = Path(order["folder"])
    log, home = folder / "log", folder / "home"
    faults = FaultInjector(order["number"], order["mode"])

    def script() -> None:
        install(faults)
        Script(order["address"], order["second"], home, log).run()
        (folder / "calls").write_text(json.dumps(faults.calls))

    ended = _in_fork(script)
    wrong: list[str] = []

    def checking() -> None:
        (folder / "wrong").write_text(
            json.dumps(check([order["second"], order["address"]], home, log))
        )

    if _in_fork(checking, folder / "trace") == 0:
        wrong += json.loads((folder / "wrong").read_text())
    else:
        wrong.append((folder / "trace").read_text())
    expected = -signal.SIGKILL if order["mode"] == "kill" else 0
    calls = json.loads((folder / "calls").read_text()) if (folder / "calls").exists() else []
    if ended not in (expected, 0):
        wrong.append(f"the script ended with {ended}")
    refused = [line["operation"] for line in _lines(log) if "error" in line]
    return {"wrong": wrong, "calls": calls, "refused": refused}


def _in_fork(work: Callable[[], None], trace: Path | None = None) -> int:
    """Do work in a forked process, and return its exit code; negative if a signal ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException:
        if trace is not None:
            trace.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


@contextmanager
def runner() -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Yield a function that has a run done by a process that was prepared once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.faults"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(order: dict[str, Any]) -> dict[str, Any]:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found

    with process:
        yield run


if __name__ == "__main__":
    torch.set_num_threads(1)
    MODEL = small_model()
    labels = torch.arange(100) % 2
    HEAD = hf.train_linear(
        (2.0 * labels - 1.0)[:, None],
        labels,
        hf.LinearRecipe(batch_size=100, travel=10.0),
        classes=2,
        dataset=RELEASED,
        progress=False,
    )
    for order in map(json.loads, sys.stdin):
        print(json.dumps(run_once(order)), flush=True)
