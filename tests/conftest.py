"""Shared by all tests: small models and records, and the figures that the soundness tests print at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import jaxtyping
import pytest
import torch

from .ledger.server import Server, find_binaries

# Shapes in signatures are checked under the tests only. Not in holdfast.kernels: the hook breaks numba's compiler.
# Not where users' arguments are checked: there our own errors are tested.
ROOMS = [
    "intervals", "losses", "records", "certificates.stable", "certificates.ensemble",
    *(f"layers.{room}" for room in ("base", "dense", "activations", "shapes", "normalisation", "convolution", "windows", "pooling", "front")),
    *(f"training.{room}" for room in ("bounds", "descent", "steps", "loop", "checkpoint", "features")),
]  # fmt: skip
jaxtyping.install_import_hook([f"holdfast.{room}" for room in ROOMS], "beartype.beartype")

FIGURES: dict[str, str] = {}


@pytest.fixture
def figures() -> dict[str, str]:
    """Lines for the end of the report, by heading."""
    return FIGURES


def pytest_terminal_summary(terminalreporter) -> None:
    if FIGURES:
        terminalreporter.section("figures")
        for heading, line in FIGURES.items():
            terminalreporter.line(f"{heading}: {line}")


def lacking(what: str, reason: str) -> NoReturn:
    """Skip a test that needs what is not here, unless HOLDFAST_REQUIRE names it."""
    if what in os.environ.get("HOLDFAST_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data."""
    folder = os.environ.get("HOLDFAST_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    lacking("data", f"HOLDFAST_DATA={folder or ''}: the folder of real data is not here")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for these tests."""
    binaries = find_binaries()
    if binaries is None:
        lacking("postgres", "PostgreSQL's server programs are not here (on Debian: apt install postgresql)")
    server = Server(binaries)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys and heads of ledgers go to the test's own folder."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
