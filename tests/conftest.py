"""Shared by all tests: small models and records, and the figures that the soundness tests print at the end."""

from __future__ import annotations

import pytest
import torch

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
