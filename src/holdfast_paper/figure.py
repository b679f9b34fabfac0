"""Figure: what each file of this room offers, and how its result is kept: numbers as JSON, a picture as PNG and PDF."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checks import refuse_unwritable
from holdfast.records.folder import MissingData
from holdfast.version import __version__

from .panels import blank
from .run import Run

Results = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and whether it is true here; `found` says by which figures."""

    claim: str
    holds: bool | None  # None: not run
    found: str


@dataclass(frozen=True)
class Figure:
    """One figure or table of the paper."""

    name: str
    title: str
    compute: Callable[[Run], Results]  # plain data only
    draw: Callable[[Results], Any]  # a matplotlib figure
    claims: Callable[[Results], list[Claim]]
    differs: str  # from the paper

    def reproduce(self, run: Run) -> Results:
        """Compute, keep and draw."""
        run.out.mkdir(parents=True, exist_ok=True)
        path = run.out / f"{self.name}.json"
        refuse_unwritable(path)
        started = time.monotonic()
        try:
            results = self.compute(run)
        except MissingData as reason:
            results = {"not run": str(reason)}
        kept = {
            "figure": self.name,
            "title": self.title,
            "quick": run.quick,
            "results": results,
            "claims": [asdict(claim) for claim in self._judged(results)],
            "differs": self.differs,
            "seconds": time.monotonic() - started,
            "machine": machine(),
        }
        path.write_text(json.dumps(kept, indent=1))
        self.picture(results, run.out, run.quick)
        return kept

    def _judged(self, results: Results) -> list[Claim]:
        return self.claims(results) if _ran(results) else [Claim(self.title, None, "not run")]

    def picture(self, results: Results, out: Path, quick: bool) -> None:
        """Draw the results as PNG and PDF."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        drawn = self.draw(results) if _ran(results) else blank(results["not run"])
        drawn.suptitle(f"{self.title}{' (quick: not to be reported)' if quick else ''}", fontsize=12)
        for ending in ("png", "pdf"):
            drawn.savefig(out / f"{self.name}.{ending}", dpi=130)
        pyplot.close(drawn)


def _ran(results: Results) -> bool:
    return set(results) != {"not run"}


def machine() -> dict[str, Any]:
    """What the numbers were made on."""
    return {
        "holdfast": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
