"""The command line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app

runner = CliRunner()


def test_demo_draws_and_prints(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "--out", str(tmp_path), "--max-distance", "3"])
    assert result.exit_code == 0, result.output
    assert "close (accuracy 97" in result.output
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_as_json(tmp_path: Path) -> None:
    result = runner.invoke(app, ["demo", "--out", str(tmp_path), "--max-distance", "2", "--json"])
    figures = json.loads(result.output)
    assert figures["far"]["certified_share"]["2"] == 1.0
    assert 0.97 < figures["close"]["accuracy"] < 0.99


def test_version_and_help() -> None:
    assert runner.invoke(app, ["--version"]).output.strip() == hf.__version__
    assert "demo" in runner.invoke(app, ["--help"]).output
