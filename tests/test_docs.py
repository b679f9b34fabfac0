"""The README's example runs, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict = {}
        exec(block, names)
        assert names["certificate"].distances.tolist() == [50, 13]  # as the text below it says
        assert names["labels"].shape == (2,)
        rows = names["mechanism"].table().rows
        assert 0.5e-12 < rows[50] / 2**128 < 2e-12
        assert 0.08 < rows[13] / 2**128 < 0.12
    assert (tmp_path / "model.holdfast").exists()


def test_the_readmes_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^holdfast (.*)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["example", "train", "certify", "simulate"]
    for command in commands:
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, result.output
    assert (tmp_path / "simulate.png").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for name in re.findall(r"`((?:tests|benchmarks|docs)/[\w/.-]*)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(
        r"`((?:kernels|intervals|layers|training|certificates|mechanisms|accounting|public|simulation)/[\w/]+\.py)`", text
    ):
        assert (ROOT / "src" / "holdfast" / name).exists(), name


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z][a-z-]*)", (ROOT / "README.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
