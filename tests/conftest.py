"""Shared by all tests: small models and records, and the figures that the soundness tests print at the end."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

# Shapes in signatures are checked under the tests only. Not in holdfast.kernels: the hook breaks numba's compiler.
# Not where users' arguments are checked: there our own errors are tested.
ROOMS = [
    "intervals", "losses", "records", "certificates.stable",
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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
