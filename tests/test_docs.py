"""The examples and commands of the documentation run, and its links exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app

pytestmark = pytest.mark.usefixtures("no_shape_checks")

COMMAND = (
    "typer",
    "holdfast.cli",
    "utils",
    "docs",
    "--name",
    "holdfast",
    "--title",
    "Command line",
)
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict = {}
        exec(block, names)
        assert names["certificate"].distances.tolist() == [39, 11]  # as the README says
        assert names["answer"].label in (0, 1)
        rows = names["predictor"].mechanism.table().rows
        assert 0.5e-6 < rows[39] / 2**128 < 2e-6
        assert 0.12 < rows[11] / 2**128 < 0.14
        assert names["predictor"].ask([2.0, 2.0], analyst="ada").cost == 0.0
        names["predictor"].ask([[0.1 * number, 0.0] for number in range(9)])
        with pytest.raises(hf.BudgetExhausted):
            names["predictor"].ask([0.0, 1.0])


def test_the_readmes_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _commands_run(ROOT / "README.md") == [
        "example",
        "train",
        "simulate",
        "budget",
        "ask",
        "statement",
    ]
    assert (tmp_path / "simulate.png").exists()
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1251


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "quickstart.md"
    assert _commands_run(page) == [
        "example",
        "train",
        "simulate",
        "budget",
        "ask",
        "ask",
        "statement",
        "budget",
        "budget",
    ]
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict = {}
    exec(block, names)
    assert names["answer"].cost == 0.0  # as the comment says


def _commands_run(page: Path) -> list[str]:
    """Run a page's holdfast commands in order and return their names."""
    commands = re.findall(r"^holdfast (.*)$", page.read_text().replace("\\\n", " "), re.MULTILINE)
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output
    return [command.split()[0] for command in commands]


def test_the_reference_is_that_of_the_commands(tmp_path: Path) -> None:
    arguments = (*COMMAND, "--output", str(tmp_path / "cli.md"))
    subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
    text = (tmp_path / "cli.md").read_text()
    assert (ROOT / "docs" / "cli.md").read_text() == text, (
        "docs/cli.md is out of date; run: make reference"
    )
    for name in ("demo", "example", "train", "certify", "simulate", "plan", "ask", "statement"):
        assert f"## `holdfast {name}`" in text
    for name in ("create", "show", "raise", "verify", "export"):
        assert f"### `holdfast budget {name}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for name in re.findall(r"`((?:tests|benchmarks|docs)/[\w/.-]*)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(
        r"`((?:kernels|intervals|layers|training|certificates|mechanisms|accounting|preprocessing|planning|ledger|serving|models|records)/[\w/]+\.py)`",
        text,
    ):
        assert (ROOT / "src" / "holdfast" / name).exists(), name


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z][a-z-]*)", (ROOT / "README.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
