"""Fixtures shared by all tests, and a report of the figures that the tests collect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import jaxtyping
import pytest
import torch

from .ledger.server import Server, find_binaries

# Shapes in signatures are checked only under the tests. The hook is not installed in
# holdfast.kernels, because it breaks numba's compiler, nor in modules that check users' arguments,
# because there the tests expect holdfast's own errors.
TYPE_CHECKED_MODULES = [
    "intervals",
    "layers.base",
    "layers.dense",
    "layers.front",
    "layers.losses",
    "layers.windows",
    "networks.boxes",
    "networks.checkpoint",
    "networks.loop",
]
jaxtyping.install_import_hook(
    [f"holdfast.{room}" for room in TYPE_CHECKED_MODULES], "beartype.beartype"
)


@pytest.fixture
def no_shape_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train thousands of tiny models in half the time; other tests check the same shapes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# Results of the whole run, collected in the reporting process.
_LINES: dict[str, str] = {}
_COUNTS: dict[str, dict[str, float]] = {}


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Collect lines for the end of the report, keyed by heading."""
    lines: dict[str, str] = {}
    yield lines
    request.node.user_properties.extend(("figure", line) for line in lines.items())


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that adds numbers to a total shared by all tests under one heading.

    For numbers whose name starts with `largest`, the maximum is kept instead of the sum.
    """

    def add(heading: str, **numbers: float) -> None:
        request.node.user_properties.append(("count", (heading, numbers)))

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the figures of a test, whichever process it ran in."""
    if report.when != "teardown":
        return
    for kind, (heading, value) in [
        entry for entry in report.user_properties if entry[0] in ("figure", "count")
    ]:
        if kind == "figure":
            _LINES[heading] = value
            continue
        totals = _COUNTS.setdefault(heading, {})
        for name, number in value.items():
            before = totals.get(name, 0)
            totals[name] = max(before, number) if name.startswith("largest") else before + number


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = {
        heading: ", ".join(
            f"{name.replace('_', ' ')} {number:.6g}" for name, number in totals.items()
        )
        for heading, totals in _COUNTS.items()
    }
    if lines or _LINES:
        terminalreporter.section("figures")
        for heading, line in (lines | _LINES).items():
            terminalreporter.line(f"{heading}: {line}")


def skip_or_fail(what: str, reason: str) -> NoReturn:
    """Skip a test whose requirement is missing, or fail it if HOLDFAST_REQUIRE names that."""
    if what in os.environ.get("HOLDFAST_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real data."""
    folder = os.environ.get("HOLDFAST_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    skip_or_fail("data", f"HOLDFAST_DATA={folder or ''}: expected the folder of real data")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Start a PostgreSQL server for the tests and stop it at the end of the session."""
    binaries = find_binaries()
    if binaries is None:
        skip_or_fail(
            "postgres", "PostgreSQL server programs not found (on Debian: apt install postgresql)"
        )
    server = Server(binaries)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store the keys and heads of ledgers in the test's own folder."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
