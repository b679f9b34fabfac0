"""Every single fault: one call to the system or to the driver fails, or the process dies there.

After each, a fresh process finds every answer that was returned, no sum beyond the budget, no
charge twice and no head that went back, and the ledger works again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from .faults import PAST_THE_BUDGET, runner
from .parts import sqlite_at
from .server import Server

MODES = ("fail before", "fail after", "kill")
Run = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def run() -> Iterator[Run]:
    with runner() as run:
        yield run


class Runs:
    """Runs of the script with faults, each with a database and a home of its own."""

    def __init__(self, run: Run, folder: Path, postgres: Server | None) -> None:
        self._run, self._folder, self._count = run, folder, 0
        self._addresses = (
            [] if postgres is None else [postgres.database(f"faults{turn}") for turn in (1, 2)]
        )

    def run(self, number: int, mode: str) -> dict[str, Any]:
        """Run once, and return what the runner says of it."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        first, second = self._empty(folder)
        about = {"number": number, "mode": mode, "folder": str(folder)}
        return self._run({**about, "address": first, "second": second})

    def _empty(self, folder: Path) -> list[str]:
        """Return the addresses of two empty databases."""
        for address in self._addresses:
            engine = sa.create_engine(
                address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
            )
            with engine.begin() as connection:
                connection.execute(sa.text("DROP SCHEMA public CASCADE"))
                connection.execute(sa.text("CREATE SCHEMA public"))
        if self._addresses:
            return self._addresses
        (folder / "second").mkdir()
        return [sqlite_at(folder), sqlite_at(folder / "second")]


def try_faults(runs: Runs, step: int) -> str:
    """Let every `step`-th call fail, in each way; return what was tried, in words."""
    without = runs.run(0, "none")
    assert (without["wrong"], without["refused"]) == ([], [PAST_THE_BUDGET] * 2)
    calls, tried, wrong = without["calls"], 0, {}
    for turn, mode in enumerate(MODES):
        for number in range(1 + (turn * step) // len(MODES), len(calls) + 1, step):
            tried += 1
            if outcome := runs.run(number, mode)["wrong"]:
                wrong[number, mode, calls[number - 1]] = outcome
    assert not wrong, "\n".join(f"{place}: {' '.join(what)}" for place, what in wrong.items())
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(calls).most_common())
    return f"{tried} faults tried, in {len(calls)} calls ({kinds}), nothing lost"


def runs_of(kind: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> Runs:
    postgres = request.getfixturevalue("postgres") if kind == "postgres" else None
    return Runs(run, tmp_path, postgres)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_some_faults(
    kind: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest, figures: dict[str, str]
) -> None:
    """The calls of each mode begin elsewhere, so that a third of them is tried by each."""
    figures[f"faults, {kind}"] = try_faults(runs_of(kind, run, tmp_path, request), 67)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_fault(
    kind: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest, figures: dict[str, str]
) -> None:
    figures[f"every fault, {kind}"] = try_faults(runs_of(kind, run, tmp_path, request), 1)
