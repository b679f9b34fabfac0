"""No package imports a higher one, and all public names exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf

from .conftest import TYPE_CHECKED_MODULES

SOURCE = Path(hf.__file__).parent
PAPER = SOURCE.parent / "holdfast_paper"
# From the lowest level up. A package may import only those of lower levels; the paper's
# experiments may import any.
IMPORT_LEVELS = [
    {"errors", "version"},
    {"checks", "relations"},
    {"kernels", "files"},
    {"workers", "intervals"},
    {"arrays", "engines"},
    {"preprocessing", "layers", "accounting"},
    {"records", "certificates"},
    {"mechanisms"},
    {"ledger"},
    {"models"},
    {"networks", "heads"},
    {"loading"},
    {"serving", "planning", "examples"},
    {"service", "client"},
    {"cli"},  # reaches all of them through `holdfast` alone
    {"__main__"},
]
LEVEL_OF = {room: level for level, rooms in enumerate(IMPORT_LEVELS) for room in rooms}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def _imported(path: Path) -> set[str]:
    """Return the packages that a module imports, at any place in it."""
    package = path.relative_to(SOURCE).parts[:-1]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = (*base, *(node.module or "").split("."))
            rooms |= {target[0]} if target[0] else {alias.name for alias in node.names}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_package_imports_a_higher_one(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in _imported(path) - {room}:
        assert LEVEL_OF[other] < LEVEL_OF[room], f"{room} imports {other}"


def test_the_library_does_not_need_the_papers_experiments() -> None:
    """Only `holdfast reproduce` imports the paper's experiments, and only when called."""
    users = {path for path in SOURCE.rglob("*.py") if "holdfast_paper" in path.read_text()}
    assert users == {SOURCE / "cli" / "examples.py"}
    assert PAPER.is_dir()


def test_the_command_line_reaches_the_library_through_its_public_names() -> None:
    """It imports `holdfast` and its own modules, and uses no name with an underscore."""
    for path in (SOURCE / "cli").glob("*.py"):
        assert _imported(path) <= {"cli"}, path
        assert not re.search(r"\bhf\.(\w+\.)*_[a-z]", path.read_text()), path


def test_every_public_name_exists() -> None:
    for name in hf.__all__:
        assert hasattr(hf, name)


@pytest.mark.parametrize(
    "statement",
    [
        "import holdfast",
        "import holdfast.cli",
        "import holdfast; holdfast.HoldfastError; holdfast.Neighbours; dir(holdfast)",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    """Heavy packages are not imported early, so that help and completion do not wait for torch."""
    heavy = ["torch", "sklearn", "sqlalchemy", "numba", "scipy", "pyarrow", "matplotlib", "numpy"]
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_has_a_module() -> None:
    assert set(hf._MODULE_OF) | {"__version__"} == set(hf.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hf.nothing


def test_every_type_checked_module_exists() -> None:
    """A module that was renamed would silently lose the check of its shapes."""
    for name in TYPE_CHECKED_MODULES:
        path = SOURCE.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


EVERY_FILE = sorted([*SOURCE.rglob("*.py"), *PAPER.rglob("*.py")])


@pytest.mark.parametrize("path", EVERY_FILE, ids=lambda path: str(path.relative_to(SOURCE.parent)))
def test_files_and_functions_stay_short(path: Path) -> None:
    """A file has at most 800 lines; a function at most 50, without signature and docstring."""
    text = path.read_text()
    assert len(text.splitlines()) <= 800
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= 50, f"{node.name} has {lines} lines"
