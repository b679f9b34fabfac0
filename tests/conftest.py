"""Shared by all tests: small models and records, and the figures that the soundness tests print at the end."""

from __future__ import annotations

import os
from pathlib import Path

import jaxtyping
import pytest
import torch

# Shapes in signatures are checked under the tests only. Not in holdfast.kernels: the hook breaks numba's compiler.
# Not where users' arguments are checked: there our own errors are tested.
ROOMS = [
    "intervals", "losses", "records", "certificates.stable", "certificates.ensemble",
    *(f"layers.{room}" for room in ("base", "dense", "activations", "shapes", "normalisation", "convolution")),
    *(f"training.{room}" for room in ("bounds", "descent", "steps", "loop", "checkpoint")),
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


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data; where it is absent the test is skipped, unless HOLDFAST_REQUIRE names `data`."""
    folder = os.environ.get("HOLDFAST_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder).resolve()
    reason = f"HOLDFAST_DATA={folder or ''}: the folder of real data is not here"
    if "data" in os.environ.get("HOLDFAST_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
