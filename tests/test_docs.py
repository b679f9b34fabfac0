"""The examples and commands of the documentation run, and its links exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app

from .service.parts import wait_until_ready

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


# What a page takes for granted: files, and names that its Python blocks use.
_LOANS = """import random
draw = random.Random(0)
rows = ["id,age,risk,default"]
for number in range(600):
    age, noise = draw.randint(18, 80), draw.gauss(0, 10)
    level = "high" if age + noise > 50 else "low"
    late = "yes" if draw.random() < (0.2 if level == "high" else 0.02) else "no"
    rows.append(f"c{number},{age},{level},{late}")
Path("all.csv").write_text("\\n".join(rows))
"""
_PREPARED = {
    "README.md": "",
    "docs/quickstart.md": "",
    "docs/tutorials/table.md": "",
    "docs/tutorials/text.md": "",
    "docs/tutorials/images.md": "",
    "docs/tutorials/service.md": "",
    "docs/operating.md": "",
    "docs/rare-classes.md": _LOANS,
    "docs/large-tables.md": "",
    "docs/persons.md": """
visits = ["patient,age,outcome"] + [f"p{n // 3},{20 + n % 50},{n % 50 > 25}" for n in range(600)]
Path("visits.csv").write_text("\\n".join(visits))
rules = 'classes = ["False", "True"]\\n[columns.age]\\nrange = [18, 90]\\n'
Path("schema.toml").write_text(rules)
""",
    "docs/guide.md": """
import holdfast as hf, torch
y = torch.arange(2000) % 2
x = torch.randn(2000, 384, generator=torch.Generator().manual_seed(0)) + y[:, None]
queries = x[:5]
ledger = hf.Ledger("sqlite:///guide.db")
public = ["age,income,job,risk"]
for n in range(400):
    public.append(f"{18 + n % 60},{1000 * (n % 90)},{'nurse' if n % 3 else 'clerk'},{n % 60 > 30}")
text = "\\n".join(public).replace("True", "yes").replace("False", "no")
Path("public.csv").write_text(text)
rules = 'classes = ["no", "yes"]\\n[columns.age]\\nrange = [18, 90]\\n'
Path("schema.toml").write_text(rules)
""",
}


def _run_page(name: str, running: ExitStack) -> tuple[dict, list[str]]:
    """Run a page's blocks in order; return the names that they define, and the commands.

    A service that a page starts runs until `running` ends.
    """
    names: dict = {"Path": Path}
    exec(_PREPARED[name], names)
    commands = []
    text = (ROOT / name).read_text().replace("\\\n", " ")
    for kind, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(textwrap.dedent(block), names)
        elif kind == "toml":
            Path("schema.toml").write_text(block)
        elif kind in ("", "bash"):
            for command in re.findall(r"^(?:export .*)?holdfast (.*)$", block, re.MULTILINE):
                words = shlex.split(command.rstrip(")"), comments=True)
                commands.append(words[0])
                if words[0] == "serve":
                    running.enter_context(_service(words))
                    continue
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 0, f"{command}\n{result.output}"
                if words[:2] == ["keys", "add"]:
                    os.environ.setdefault("HOLDFAST_KEY", result.stdout.strip())
    return names, commands


@contextmanager
def _service(words: list[str]) -> Iterator[None]:
    """Run `holdfast serve` as a page writes it, on the port that the page names."""
    port = words[words.index("--port") + 1] if "--port" in words else "8000"
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words])
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", lambda: process.poll() is None)
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@pytest.mark.parametrize("page", _PREPARED)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the page as a reader would, and check what it says about the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_KEY", raising=False)
    with ExitStack() as running:
        names, commands = _run_page(page, running)
    _check_page(page, names, commands, tmp_path)


def _check_page(page: str, names: dict, commands: list[str], tmp_path: Path) -> None:
    if page == "README.md":
        certificate = names["head"].certify([[2.0, 2.0], [-0.4, 0.2]])
        assert certificate.distances.tolist() == [39, 11]  # as the README says
        rows = names["predictor"].mechanism.table().rows
        assert 0.5e-6 < rows[39] / 2**128 < 2e-6
        assert 0.12 < rows[11] / 2**128 < 0.14
        assert names["predictor"].ask([2.0, 2.0], analyst="ada").cost == 0.0
        names["predictor"].ask([[0.1 * number, 0.0] for number in range(9)])
        with pytest.raises(hf.BudgetExhausted):
            names["predictor"].ask([0.0, 1.0])
        assert commands == [
            "example",
            "train",
            "simulate",
            "budget",
            "ask",
            "statement",
            "keys",
            "serve",
        ]
        assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1251
    if page == "docs/tutorials/service.md":
        assert [answer.label for answer in names["answers"]] == ["stays", "home"]
        assert names["client"].__exit__(None, None, None) is None
    if page == "docs/quickstart.md":
        assert names["answer"].cost == 0.0  # as the comment says
    if page == "docs/tutorials/table.md":
        assert list(names["answers"].columns) == ["label", "index", "cost", "remaining"]
        assert names["answers"]["cost"].sum() == 0.0  # as the comment says
        assert len((tmp_path / "answers.csv").read_text().splitlines()) == 41
    if page in ("docs/tutorials/text.md", "docs/tutorials/images.md"):
        assert names["accuracy"] > 0.85
    if page == "docs/rare-classes.md":
        text = (tmp_path / "balanced.csv").read_text()
        assert text.count("yes") == (tmp_path / "all.csv").read_text().count("yes")
        assert text.count("no") < 100


def test_all_blocks_with_code_are_run() -> None:
    """No page has blocks of Python or commands that no test runs; the others are named here."""
    not_run = {"docs/cli.md", "docs/reproduction.md", "docs/contributing.md"}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        blocks = re.findall(r"^ *```(?:python|bash|)\n(.*?)^ *```", page.read_text(), re.S | re.M)
        if any("holdfast" in block or "hf." in block for block in blocks):
            assert name in {*_PREPARED, *not_run}, name


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES) - 5
    for page in pages:  # nothing is loaded from elsewhere, so the site works offline
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?:', page.read_text())


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
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
            if anchor:
                linked = page.parent / target if target else page
                assert anchor in _anchors(linked), f"{target}#{anchor}"
    for name in re.findall(r"`((?:tests|benchmarks|docs)/[\w/.-]*)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(
        r"`((?:kernels|intervals|layers|training|certificates|mechanisms|accounting|preprocessing|planning|ledger|serving|models|records)/[\w/]+\.py)`",
        text,
    ):
        assert (ROOT / "src" / "holdfast" / name).exists(), name


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z][a-z-]*)", (ROOT / "README.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
