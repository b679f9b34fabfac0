"""The store of cells: each result is kept under the full content of its configuration, so that a run resumes where it stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from holdfast.errors import DamagedFile
from holdfast.files import as_text, read, write
from holdfast.version import __version__


@dataclass(frozen=True)
class Cell:
    """One result: plain figures, and tensors."""

    figures: dict[str, Any]
    tensors: dict[str, Tensor]


Compute = Callable[[], tuple[Mapping[str, Any], Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    folder: Path
    console: Console

    def cell(self, title: str, config: Mapping[str, Any], compute: Compute) -> Cell:
        """The cell of a configuration, which must hold all that decides the result; computed if it is not there yet."""
        full = {"version": __version__, "torch": torch.__version__, **config}
        path = self.folder / f"{hashlib.sha256(as_text(full).encode()).hexdigest()[:24]}.cell"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            with self.console.status(title):
                figures, tensors = compute()
            seconds = time.monotonic() - started
            write(path, "cell", {"title": title, "config": full, "figures": dict(figures), "seconds": seconds}, tensors)
            self.console.print(f"[dim]{title}: {seconds:.1f} s[/dim]")
        try:
            header, found = read(path, "cell")
        except DamagedFile as error:
            raise DamagedFile(f"{error}; it holds a cached result: remove it, and the result is computed again") from error
        return Cell(header["figures"], found)
