"""Fixtures for ledgers in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import holdfast as hf

from .parts import NAME, small_model, sqlite_at

_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a database that holds no ledger yet."""
    if request.param == "sqlite":
        return sqlite_at(tmp_path)
    return request.getfixturevalue("postgres").database(f"test{next(_numbers)}")


@pytest.fixture
def ledger(address: str) -> hf.Ledger:
    """Return a ledger with a budget of ten answers at epsilon 0.1."""
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    return ledger


@pytest.fixture(scope="session")
def model() -> hf.Certified:
    return small_model()
