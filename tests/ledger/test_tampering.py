"""Changes made to the database behind the ledger's back are detected.

Both `holdfast budget verify` and the next question detect them.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.ledger import shared
from holdfast.ledger.entries import GENESIS, Entry

from .parts import NAME, query, sqlite_at

TENTH = hf.StableResponse(0.1)


def engine_of(address: str) -> sa.Engine:
    return sa.create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )


def execute(address: str, *statements: str) -> None:
    with engine_of(address).begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def change(address: str) -> None:
    execute(address, "UPDATE holdfast_entries SET label = 1 - label WHERE number = 3")


def refund(address: str) -> None:
    execute(address, "UPDATE holdfast_entries SET loss = '0' WHERE number = 4")


def drop(address: str) -> None:
    execute(address, "DELETE FROM holdfast_entries WHERE number = 3")


def truncate(address: str) -> None:
    execute(address, "DELETE FROM holdfast_entries WHERE number > 4")


def empty(address: str) -> None:
    execute(address, "DELETE FROM holdfast_entries")


def renumber(address: str) -> None:
    execute(
        address,
        "DELETE FROM holdfast_entries WHERE number = 3",
        "UPDATE holdfast_entries SET number = number - 1 WHERE number > 3",
    )


def swap(address: str) -> None:
    execute(
        address,
        *(
            f"UPDATE holdfast_entries SET number = {new} WHERE number = {old}"
            for old, new in ((3, 99), (4, 3), (99, 4))
        ),
    )


def rename(address: str) -> None:
    execute(address, "UPDATE holdfast_entries SET dataset = 'elsewhere' WHERE number = 3")


def recompute(address: str) -> None:
    """Remove one entry and seal the chain again with a key of the attacker."""
    with engine_of(address).begin() as connection:
        rows = connection.execute(sa.text("SELECT * FROM holdfast_entries ORDER BY number")).all()
        connection.execute(sa.text("DELETE FROM holdfast_entries"))
        seal = GENESIS
        for number, row in enumerate([*rows[:2], *rows[3:]], 1):
            entry = Entry(*row[:-1])
            entry = Entry(number, *entry[1:-1])
            seal = entry.compute_seal(b"\0" * 32, seal)
            columns = ", ".join(row._fields)
            marks = ", ".join(f":{name}" for name in row._fields)
            values = dict(zip(row._fields, (*entry[:-1], seal), strict=True))
            connection.execute(
                sa.text(f"INSERT INTO holdfast_entries ({columns}) VALUES ({marks})"), values
            )


def forget_identity(address: str) -> None:
    execute(address, "DELETE FROM holdfast_ledger", "DELETE FROM holdfast_entries")


ATTACKS = [
    change,
    refund,
    drop,
    truncate,
    empty,
    renumber,
    swap,
    rename,
    recompute,
    forget_identity,
]


def assert_everything_is_refused(
    address: str, running: hf.PrivatePredictor, model: hf.Certified
) -> None:
    """Assert that a running process, a new process and the command line all refuse the ledger."""
    for ask in (
        lambda: running.ask(query(50)),
        lambda: running.ask(query(0)),
        lambda: hf.PrivatePredictor(model, hf.Ledger(address), mechanism=TENTH),
    ):
        with pytest.raises(hf.errors.TamperedLedger):
            ask()
    result = CliRunner().invoke(app, ["budget", "verify", "--ledger", address])
    assert result.exit_code == 4, result.output
    assert result.stderr.startswith("holdfast: ")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_on_the_database_is_found(
    address: str, model: hf.Certified, attack: Callable[[str], None]
) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    running = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    for number in range(5):
        running.ask(query(number))
    assert CliRunner().invoke(app, ["budget", "verify", "--ledger", address]).exit_code == 0
    if attack is forget_identity:
        attack(address)
        with pytest.raises(hf.errors.TamperedLedger):
            running.ask(query(50))
        with pytest.raises(hf.errors.TamperedLedger, match="there was a ledger"):
            hf.PrivatePredictor(model, hf.Ledger(address), mechanism=TENTH)
        with pytest.raises(hf.errors.TamperedLedger, match="there was a ledger"):
            hf.Ledger(address).create_budget(NAME, hf.Budget(1.0))
        return
    attack(address)
    assert_everything_is_refused(address, running, model)


def test_a_change_among_many_entries_is_found_while_answers_are_given(
    tmp_path: Path, model: hf.Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running process verifies all entries again, some at a time; then it answers nothing more.

    There are two pages, so the third ask at the latest finds it; `verify` finds it at once.
    """
    monkeypatch.setattr(shared, "_INTERVAL", 0.0)
    address = sqlite_at(tmp_path)
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(100.0), queries=1000)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask_all(torch.stack([query(number) for number in range(300)]))
    change(address)
    with pytest.raises(hf.errors.TamperedLedger, match="entry 3"):
        hf.Ledger(address).verify()
    with pytest.raises(hf.errors.TamperedLedger, match="entry 3"):
        [predictor.ask(query(number)) for number in range(301, 304)]
    for _ in range(2):
        with pytest.raises(hf.errors.TamperedLedger, match="entry 3"):
            ledger.status(NAME)


@pytest.mark.parametrize("how", ["copied over", "moved over", "copied over, with its log removed"])
@pytest.mark.parametrize("running", [True, False], ids=["while running", "while stopped"])
def test_an_old_backup_is_found(
    tmp_path: Path, model: hf.Certified, how: str, running: bool
) -> None:
    address, file = sqlite_at(tmp_path), tmp_path / "ledger.db"
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    for number in range(3):
        predictor.ask(query(number))
    ledger.close()  # closing moves the log into the main file
    shutil.copy(file, tmp_path / "backup.db")
    for number in range(3, 6):
        predictor.ask(query(number))
    if not running:
        ledger.close()
    if how == "moved over":
        (tmp_path / "backup.db").replace(file)
    else:
        shutil.copy(tmp_path / "backup.db", file)
    if how != "copied over" or not running:
        for ending in ("-wal", "-shm"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
    if running and how == "copied over":
        # SQLite's log still holds the later entries: either none is lost or tampering is found.
        try:
            predictor.ask(query(50))
        except hf.errors.TamperedLedger:
            return
        assert hf.Ledger(address).verify() == 8
        return
    if not running:
        assert_everything_is_refused(address, predictor, model)
        return
    with pytest.raises(hf.errors.TamperedLedger, match="exchanged while they were open"):
        predictor.ask(query(50))
    verify = [sys.executable, "-m", "holdfast", "budget", "verify", "--ledger", address]
    # SQLite's locks belong to a process, so a second process is needed.
    other = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert other.returncode == 4, other.stderr
    assert "old copy" in other.stderr


def test_a_ledger_that_was_deleted_does_not_begin_anew(tmp_path: Path, model: hf.Certified) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    running = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    running.ask(query(1))
    ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(hf.errors.TamperedLedger):
        running.ask(query(2))
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(hf.errors.TamperedLedger, match="there was a ledger with entries here"):
        hf.Ledger(sqlite_at(tmp_path)).create_budget(NAME, hf.Budget(1.0))


def test_a_deleted_ledger_does_not_begin_anew_because_its_head_was_damaged(
    tmp_path: Path, home: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (head,) = home.glob("*.head")
    head.write_bytes(b"\0" * head.stat().st_size)
    with pytest.raises(hf.errors.TamperedLedger, match="damaged"):
        hf.Ledger(sqlite_at(tmp_path)).create_budget(NAME, hf.Budget(1.0))


def test_a_copied_ledger_cannot_be_spent_twice(tmp_path: Path, model: hf.Certified) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy" / "ledger.db")
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1))
    with pytest.raises(hf.errors.TamperedLedger, match="this is a copy of the ledger"):
        hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path / "copy")), mechanism=TENTH)


def test_a_lost_key_or_head_stops_everything(
    tmp_path: Path, home: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    (head,) = home.glob("*.head")
    (key,) = home.glob("*.key")
    assert key.stat().st_mode & 0o077 == 0
    kept = head.read_bytes()
    head.write_bytes(b"\0" * len(kept))
    with pytest.raises(hf.errors.TamperedLedger, match="damaged"):
        predictor.ask(query(1))
    head.unlink()
    with pytest.raises(hf.errors.TamperedLedger, match="is gone"):
        predictor.ask(query(1))
    head.write_bytes(kept)
    predictor.ask(query(1))
    key.rename(tmp_path / "elsewhere.key")
    with pytest.raises(hf.errors.TamperedLedger, match="the key of this ledger is not here"):
        hf.Ledger(sqlite_at(tmp_path)).status(NAME)


def test_a_torn_head_loses_nothing(tmp_path: Path, home: Path, model: hf.Certified) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask(query(1))
    (head,) = home.glob("*.head")
    content = bytearray(head.read_bytes())
    content[:100] = b"\0" * 100  # one of the two slots was half written when the power failed
    head.write_bytes(content)
    predictor.ask(query(2))
    assert ledger.verify() == 3


def test_a_stale_head_is_updated(tmp_path: Path, home: Path, model: hf.Certified) -> None:
    """A stale head is updated after a process died between its commit and its write of the head."""
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    (head,) = home.glob("*.head")
    before = head.read_bytes()
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1))
    head.write_bytes(before)
    again = hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path)), mechanism=TENTH)
    assert again.ask(query(1)).cost == 0.0
    assert again.ask(query(2)).remaining == 0.8


def test_a_ledger_identity_cannot_be_a_path(tmp_path: Path, model: hf.Certified) -> None:
    """A ledger whose identity is a path to the attacker's own key is refused."""
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1))
    ledger.close()
    evil = hf.Ledger(f"sqlite:///{tmp_path}/evil.db", home=tmp_path / "evil")
    evil.create_budget(NAME, hf.Budget(1000.0))
    evil.close()
    (key,) = (tmp_path / "evil").glob("*.key")
    execute(
        f"sqlite:///{tmp_path}/evil.db",
        f"UPDATE holdfast_ledger SET identity = '{key.with_suffix('')}'",
    )
    (tmp_path / "evil.db").replace(tmp_path / "ledger.db")
    with pytest.raises(hf.errors.TamperedLedger):
        hf.Ledger(sqlite_at(tmp_path)).verify()
    with pytest.raises(hf.errors.TamperedLedger, match="16 hexadecimal digits"):
        hf.Ledger(sqlite_at(tmp_path), home=tmp_path / "unused").verify()


def test_another_ledger_of_the_same_owner_cannot_take_its_place(
    tmp_path: Path, model: hf.Certified
) -> None:
    for name in ("ledger", "trial"):
        ledger = hf.Ledger(f"sqlite:///{tmp_path}/{name}.db")
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
        hf.PrivatePredictor(dataclasses.replace(model, dataset=name), ledger, mechanism=TENTH).ask(
            query(1)
        )
        ledger.close()
    shutil.copy(tmp_path / "trial.db", tmp_path / "ledger.db")
    with pytest.raises(hf.errors.TamperedLedger, match="another ledger took the place"):
        hf.Ledger(sqlite_at(tmp_path)).verify()


def test_an_answer_repeated_after_a_crash_is_covered_by_the_head(
    tmp_path: Path, home: Path, model: hf.Certified
) -> None:
    """An answer that is returned again after a crash is covered by the head.

    The process died between its commit and the write of the head, and a retry returned the answer.
    """
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    (head,) = home.glob("*.head")
    before = head.read_bytes()
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1))
    ledger.close()
    head.write_bytes(before)
    retry = hf.Ledger(sqlite_at(tmp_path))
    assert hf.PrivatePredictor(model, retry, mechanism=TENTH).ask(query(1)).cost == 0.0
    retry.close()
    execute(sqlite_at(tmp_path), "DELETE FROM holdfast_entries WHERE number = 2")
    with pytest.raises(hf.errors.TamperedLedger):
        hf.Ledger(sqlite_at(tmp_path)).verify()


@pytest.mark.parametrize(
    "change", ["time = x'00ff'", "seal = 'é'", "loss = 'many'", "label = 'yes'"]
)
def test_foreign_types_are_tampering_too(tmp_path: Path, model: hf.Certified, change: str) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask(query(1))
    execute(sqlite_at(tmp_path), f"UPDATE holdfast_entries SET {change} WHERE number = 2")
    with pytest.raises(hf.errors.TamperedLedger):
        predictor.ask(query(2))


def test_an_entry_before_the_first_is_seen(address: str, model: hf.Certified) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    execute(
        address,
        "INSERT INTO holdfast_entries SELECT 0, time, kind, dataset, analyst, model, question, "
        "label, loss, leak, about, seal FROM holdfast_entries",
    )
    with pytest.raises(hf.errors.TamperedLedger, match="entry 1 is missing"):
        ledger.verify()


def test_a_database_that_swallows_entries_gives_no_answers(
    tmp_path: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    execute(
        sqlite_at(tmp_path),
        "CREATE TRIGGER t BEFORE INSERT ON holdfast_entries BEGIN SELECT raise(ignore); END",
    )
    with pytest.raises(hf.errors.LedgerUnavailable, match="0 of 1 entries"):
        predictor.ask(query(1))


def test_dropped_tables_are_tampering(address: str, model: hf.Certified) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    execute(address, "DROP TABLE holdfast_entries")
    with pytest.raises(hf.errors.TamperedLedger):
        predictor.ask(query(1))
