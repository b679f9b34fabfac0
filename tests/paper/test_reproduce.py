"""`holdfast reproduce all --quick` computes, draws and judges every figure.

If data are missing, the output says so.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.cli.examples import Which
from holdfast_paper.report import FIGURES

pytestmark = pytest.mark.usefixtures("no_shape_checks")

runner = CliRunner()


def test_the_command_knows_every_figure() -> None:
    assert {which.value for which in Which} == {"all", *FIGURES}


def _reproduce_all(out: Path, *options: str) -> dict[str, dict]:
    result = runner.invoke(
        app, ["reproduce", "all", "--quick", "--report", "--json", "--out", str(out), *options]
    )
    assert result.exit_code == 0, result.output
    kept = json.loads(result.stdout)
    assert list(kept) == list(FIGURES)
    for name, figure in kept.items():
        assert json.loads((out / "quick" / f"{name}.json").read_text()) == figure
        assert (out / "quick" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / "quick" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert figure["claims"]
        assert figure["differs"]
    return kept


def test_all_on_real_data(data_folder: Path, tmp_path: Path) -> None:
    kept = _reproduce_all(tmp_path, "--data", str(data_folder))
    for name in ("single-model", "ensembles", "inference-budget"):
        assert set(kept[name]["results"]["panels"]) == {"blobs", "octmnist", "imdb"}
    # With so few records and distances, these two give no verdict.
    for name in set(FIGURES) - {"tightness", "depth"}:
        assert not any(claim["holds"] is None for claim in kept[name]["claims"])
    page = (tmp_path / "quick" / "report.html").read_text()
    for figure in kept.values():
        assert figure["title"] in page
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "quick" / "cells").iterdir()}
    for name in ("inference-budget", "depth"):  # use only the cached cells
        command = ["reproduce", name, "--quick", "--out", str(tmp_path), "--json"]
        result = runner.invoke(app, [*command, "--data", str(data_folder)])
        assert json.loads(result.stdout)[name]["results"] == kept[name]["results"]
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "quick" / "cells").iterdir()
    } == cells


def test_without_data_blobs_are_run_and_the_rest_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    result = runner.invoke(app, ["reproduce", "single-model", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "--data" in result.output
    kept = json.loads((tmp_path / "quick" / "single-model.json").read_text())["results"]
    assert set(kept["panels"]) == {"blobs"}
    assert "zenodo" in kept["not run"]["octmnist"]
    assert "imdb/train.parquet" in kept["not run"]["imdb"]
    for name in ("octmnist", "imdb", "tightness", "depth"):
        result = runner.invoke(app, ["reproduce", name, "--quick", "--out", str(tmp_path)])
        assert result.exit_code == 0, result.output
        claims = json.loads((tmp_path / "quick" / f"{name}.json").read_text())["claims"]
        assert all(claim["holds"] is None for claim in claims)
    result = runner.invoke(
        app, ["reproduce", "imdb", "--quick", "--data", str(tmp_path / "nowhere")]
    )
    assert result.exit_code == 2
    assert "no such folder" in result.output
