"""Budgets of two ledgers for the same data add up, so a second one needs a flag and warns.

Ledgers of older versions are covered here, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.ledger import entries as schema

from .parts import NAME, query, sqlite_at

TENTH = hf.StableResponse(0.1)


def test_a_second_ledger_for_the_same_name_needs_a_flag_and_warns(tmp_path: Path) -> None:
    first, second = (hf.Ledger(f"sqlite:///{tmp_path}/{name}.db") for name in ("first", "second"))
    first.create_budget(NAME, hf.Budget(1.0), queries=10)
    with pytest.raises(
        hf.errors.InvalidInput,
        match=(
            r"another ledger, too: .*first\.db\. Budgets of two ledgers add "
            r"up.*beside_other_ledgers"
        ),
    ):
        second.create_budget(NAME, hf.Budget(1.0), queries=10)
    assert not (tmp_path / "second.db").exists()
    second.create_budget("another name", hf.Budget(1.0), queries=10)
    with pytest.warns(hf.errors.HoldfastWarning, match="what protects the records is their sum"):
        second.create_budget(NAME, hf.Budget(1.0), queries=10, beside_other_ledgers=True)
    assert second.names() == ["another name", NAME]


def test_budgets_in_different_homes_are_not_compared(tmp_path: Path) -> None:
    for name in ("first", "second"):
        hf.Ledger(
            f"sqlite:///{tmp_path}/{name}.db", home=tmp_path / f"home of {name}"
        ).create_budget(NAME, hf.Budget(1.0), queries=10)


def test_a_ledger_without_a_data_set_list_is_registered_when_opened(
    tmp_path: Path, home: Path
) -> None:
    first = hf.Ledger(f"sqlite:///{tmp_path}/first.db")
    first.create_budget(NAME, hf.Budget(1.0), queries=10)
    (noted,) = home.glob("*.datasets")
    noted.unlink()
    assert hf.Ledger(first.address).status(NAME).answers == 0
    with pytest.raises(hf.errors.InvalidInput, match="add up"):
        hf.Ledger(f"sqlite:///{tmp_path}/second.db").create_budget(NAME, hf.Budget(1.0))


def test_a_damaged_data_set_list_is_refused(tmp_path: Path, home: Path) -> None:
    hf.Ledger(f"sqlite:///{tmp_path}/first.db").create_budget(NAME, hf.Budget(1.0))
    (noted,) = home.glob("*.datasets")
    noted.write_text("{")
    with pytest.raises(hf.errors.LedgerUnavailable, match="list of data sets cannot be read"):
        hf.Ledger(f"sqlite:///{tmp_path}/second.db").create_budget("x", hf.Budget(1.0))


def test_a_version_1_ledger_is_migrated_and_keeps_what_was_spent(
    address: str, model: hf.Certified
) -> None:
    """A ledger of version 1 is migrated and keeps what was spent.

    Version 1 identified questions by the private model's fingerprint; they are charged again after
    the migration, and nothing is refunded.
    """
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1), analyst="ada")
    with ledger._database._engine.connect() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'"))
        for table in (schema.PAGES, schema.CHECKPOINTS):
            connection.execute(sa.text(f"DROP TABLE {table}"))
    ledger.close()
    again = hf.Ledger(address)
    assert again.status(NAME).spent == 0.1
    assert again.verify() == 2
    with again._database._engine.connect() as connection:
        assert schema.version(connection) == schema.VERSION


def test_a_missing_queue_file_is_created_when_needed(
    tmp_path: Path, home: Path, model: hf.Certified
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    ledger.close()
    for path in home.glob("*.queue"):
        path.unlink()
    assert (
        hf.PrivatePredictor(model, hf.Ledger(sqlite_at(tmp_path)), mechanism=TENTH)
        .ask(query(1))
        .cost
        == 0.1
    )
