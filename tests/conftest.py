"""Shared by all tests: what they need from outside, and the figures that are printed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import jaxtyping
import pytest
import torch

from .ledger.server import Server, find_binaries

# Shapes in signatures are checked under the tests only. Not in holdfast.kernels: the hook breaks numba's compiler.
# Not where users' arguments are checked: there our own errors are tested.
ROOMS = [
    "intervals", "layers.losses", "records.records", "certificates.stable_distance", "certificates.vote",
    *(f"layers.{room}" for room in ("base", "dense", "activations", "shapes", "normalisation", "convolution", "windows", "pooling", "front")),
    *(f"training.{room}" for room in ("bounds", "gradient_bounds", "optimizer", "loop", "checkpoint", "features")),
]  # fmt: skip
jaxtyping.install_import_hook([f"holdfast.{room}" for room in ROOMS], "beartype.beartype")

_LINES: dict[str, str] = {}  # of the whole run, in the process that reports
_COUNTS: dict[str, dict[str, float]] = {}


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Lines for the end of the report, by heading."""
    lines: dict[str, str] = {}
    yield lines
    request.node.user_properties.extend(("figure", line) for line in lines.items())


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Adds numbers to those that other tests count under the same heading; of those named `largest...` the largest is kept."""

    def add(heading: str, **numbers: float) -> None:
        request.node.user_properties.append(("count", (heading, numbers)))

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what tests reported, from whichever process they ran in."""
    if report.when != "teardown":
        return
    for kind, (heading, value) in [entry for entry in report.user_properties if entry[0] in ("figure", "count")]:
        if kind == "figure":
            _LINES[heading] = value
            continue
        totals = _COUNTS.setdefault(heading, {})
        for name, number in value.items():
            before = totals.get(name, 0)
            totals[name] = max(before, number) if name.startswith("largest") else before + number


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = {
        heading: ", ".join(f"{name.replace('_', ' ')} {number:.6g}" for name, number in totals.items())
        for heading, totals in _COUNTS.items()
    }
    if lines or _LINES:
        terminalreporter.section("figures")
        for heading, line in (lines | _LINES).items():
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
