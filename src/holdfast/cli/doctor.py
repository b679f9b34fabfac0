"""The command `holdfast doctor`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

import holdfast as hf

from .app import DEFAULT_LEDGER, AsJson, LedgerAddress, app, command_context, print_json

_LIBRARIES = ("torch", "numba", "numpy", "scikit-learn", "pyarrow", "sqlalchemy", "python-flint")
_EXTRAS = {"postgres": "psycopg", "dpsgd": "opacus", "paper": "transformers"}


class Finding(NamedTuple):
    """One line of the check-up: `state` is "ok", "note" or "wrong"."""

    what: str
    state: str
    text: str


@app.command()
def doctor(ledger: LedgerAddress = DEFAULT_LEDGER, as_json: AsJson = False) -> None:
    """Check the installation, the arithmetic, the threads, the ledger, its key and backups.

    Nothing is changed and nothing is charged. Exit code 2 means that something is wrong.
    """
    with command_context(as_json) as console:
        found = [
            _python(),
            _installed(),
            _extras(),
            _tried("arithmetic", _arithmetic),
            _threads(),
            _writable(),
            *_ledger(ledger),
        ]
        table = Table(title=f"holdfast {hf.__version__}", show_header=False)
        for finding in found:
            colour = {"ok": "green", "note": "yellow", "wrong": "red"}[finding.state]
            table.add_row(
                finding.what, f"[{colour}]{finding.state}[/{colour}]", escape(finding.text)
            )
        console.print(table)
        print_json([finding._asdict() for finding in found], as_json)
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(2)


def _tried(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", check())
    except (hf.HoldfastError, OSError) as error:
        return Finding(what, "wrong", str(error))


def _python() -> Finding:
    here = f"Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.prefix}"
    if sys.prefix == sys.base_prefix:
        return Finding("Python", "note", f"{here}: not a virtual environment")
    return Finding("Python", "ok", here)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _installed() -> Finding:
    found = {name: _version(name) for name in _LIBRARIES}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        text = f"{', '.join(missing)} missing; install holdfast again: pip install holdfast"
        return Finding("libraries", "wrong", text)
    return Finding("libraries", "ok", ", ".join(f"{name} {text}" for name, text in found.items()))


def _extras() -> Finding:
    missing = [extra for extra, name in _EXTRAS.items() if _version(name) is None]
    if not missing:
        return Finding("extras", "ok", ", ".join(_EXTRAS))
    text = f"not installed: {', '.join(missing)} (pip install 'holdfast[{','.join(missing)}]')"
    return Finding("extras", "note", text)


def _arithmetic() -> str:
    hf.kernels.require_ieee()
    return "rounds to nearest and keeps denormal numbers, as certificates need"


def _threads() -> Finding:
    import torch

    used, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    text = f"{used} of {cores} cores"
    if used < cores:
        return Finding("threads", "note", f"{text}; unset OMP_NUM_THREADS to use all")
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        return Finding("threads", "ok", f"{text}; OMP_WAIT_POLICY=PASSIVE helps on a busy machine")
    return Finding("threads", "ok", text)


def _writable() -> Finding:
    here = Path.cwd()
    if os.access(here, os.W_OK):
        return Finding("folder", "ok", f"{here} can be written")
    text = f"{here} cannot be written; change the folder, or give --out to commands"
    return Finding("folder", "note", text)


def _ledger(address: str) -> Iterator[Finding]:
    """Check the ledger at an address, its key and what a backup must hold."""
    opened = hf.Ledger(address)
    database = None
    if address.startswith("sqlite:///"):
        database = Path(address.removeprefix("sqlite:///")).absolute()
    try:
        yield Finding("ledger", "ok", f"{opened.verify():,} entries, all as they were written")
        yield from _names_spelled_twice(opened)
    except hf.errors.InvalidInput as error:  # there is none, and there never was one
        yield Finding("ledger", "note", str(error))
        return
    except (hf.HoldfastError, OSError) as error:
        yield Finding("ledger", "wrong", str(error))
    for path in sorted(opened.home.glob("*.key")):
        if _readable_by_others(path):
            yield Finding("key", "wrong", f"{path}: others can read it; chmod 600 {path}")
    if database is not None and database.exists() and _readable_by_others(database):
        text = f"{database}: others can read it, and see who asks how much; chmod 600 {database}*"
        yield Finding("database", "note", text)
    if opened.home.exists():
        yield _backups(opened.home, database)


def _names_spelled_twice(ledger: hf.Ledger) -> Iterator[Finding]:
    """Find names of older versions that look the same and have accounts or shares of their own."""
    datasets = ledger.names()
    places = {"data sets": datasets} | {
        f"analysts of {name!r}": list(ledger.status(name).by_analyst) for name in datasets
    }
    for place, names in places.items():
        spellings: dict[str, list[str]] = {}
        for name in names:
            spellings.setdefault(hf.checks.canonical_name(name), []).append(ascii(name))
        for same in spellings.values():
            if len(same) > 1:
                text = f"{place} that look the same and are counted apart: {', '.join(same)}"
                yield Finding("names", "note", text)


def _readable_by_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _backups(home: Path, database: Path | None) -> Finding:
    if database is not None and home.absolute().is_relative_to(database.parent):
        text = (
            f"the key in {home} is in the folder of the database: a backup of the folder would "
            "hold both; set HOLDFAST_HOME to a folder elsewhere, and move it there"
        )
        return Finding("backups", "note", text)
    heads = [path.stat().st_mtime for path in home.glob("*.head")]
    age = f", last written {(time.time() - max(heads)) / 3600:,.0f} h ago" if heads else ""
    text = (
        f"`holdfast budget backup FILE` for the database; save the key in {home} once, apart from "
        f"it: without the key, the ledger is lost; the head there{age} must be the latest one"
    )
    return Finding("backups", "ok", text)
