"""Lower rooms never import higher ones; the public names are there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf

SOURCE = Path(hf.__file__).parent
# From the ground up. A room may import those before it.
FLOORS = [
    {"errors", "version"},
    {"checks", "neighbours"},
    {"kernels", "files", "progress", "records", "models"},
    {"intervals", "workers", "folds"},
    {"layers"},
    {"losses"},
    {"training"},
    {"certificates", "accounting"},
    {"mechanisms"},
    {"public", "ledger"},
    {"preparation"},
    {"certified"},
    {"ensemble"},
    {"saved"},
    {"predictor", "statement"},
    {"estimator"},
    {"data", "simulation", "baselines"},
    {"experiments"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def _imported(path: Path) -> set[str]:
    """The rooms a module imports, wherever in it."""
    package = path.relative_to(SOURCE).parts[:-1]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = (*base, *(node.module or "").split("."))
            rooms |= {target[0]} if target[0] else {alias.name for alias in node.names}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_goes_up(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in _imported(path) - {room}:
        if room in ("certified", "ensemble") and other == "saved":
            continue  # save is a method for the user's sake, and imports its writer when called
        assert FLOOR[other] < FLOOR[room], f"{room} imports {other}"


def test_every_public_name_exists() -> None:
    for name in hf.__all__:
        assert hasattr(hf, name)


@pytest.mark.parametrize(
    "statement",
    ["import holdfast", "import holdfast.cli", "import holdfast; holdfast.HoldfastError; holdfast.Neighbours; dir(holdfast)"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    """Help, version and completion must not wait for torch."""
    heavy = ["torch", "sklearn", "sqlalchemy", "numba", "scipy", "pyarrow", "matplotlib", "numpy"]
    code = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_has_a_home() -> None:
    assert set(hf._HOMES) | {"__version__"} == set(hf.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hf.nothing
