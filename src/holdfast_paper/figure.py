"""Figure: what each figure's module offers, how its result is stored, and how panels are drawn."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checks import refuse_unwritable
from holdfast.examples.tables import MissingData
from holdfast.version import __version__

from .run import Run

# The paper's methods are dashed, ours are solid, DP-SGD is dash-dotted with a band.
STYLES: dict[str, dict[str, Any]] = {
    "paper: global sensitivity (replace)": {"color": "C7", "linestyle": "--", "marker": "v"},
    "paper: smooth sensitivity (replace)": {"color": "C0", "linestyle": "--", "marker": "o"},
    "paper: noisy argmax, T = 25 (replace)": {"color": "C8", "linestyle": "--", "marker": "^"},
    "paper: smooth sensitivity, T = 25 (replace)": {
        "color": "C9",
        "linestyle": "--",
        "marker": "s",
    },
    "paper: noisy argmax (replace)": {"color": "C8", "linestyle": "--", "marker": "^"},
    "paper's own ensemble distance (not private)": {"color": "C4", "linestyle": ":", "marker": "x"},
    "ours: stable response (add_remove)": {"color": "C3", "linestyle": "-", "marker": "D"},
    "ours: budgeted response (add_remove)": {"color": "C3", "linestyle": "-", "marker": "D"},
    "ours: budgeted response, T = 25 (add_remove)": {
        "color": "C1",
        "linestyle": "-",
        "marker": "P",
    },
    "ours: head, public numbers alone (add_remove)": {
        "color": "C2",
        "linestyle": "-",
        "marker": "*",
    },
    "ours: released head, public numbers alone (add_remove)": {"color": "C2", "linestyle": "-."},
    "DP-SGD, one public rule (add_remove)": {"color": "C6", "linestyle": "-."},
    "DP-SGD, the paper's settings (add_remove)": {"color": "C5", "linestyle": "-."},
    "DP-SGD, tuned (add_remove)": {"color": "black", "linestyle": "-."},
}


def grid(rows: int, columns: int, height: float = 4.0) -> tuple[Any, Any]:
    """Return a figure and its axes, always as a two-dimensional array."""
    from matplotlib import pyplot

    return pyplot.subplots(
        rows,
        columns,
        figsize=(5.0 * columns, height * rows + 1.2),
        layout="constrained",
        squeeze=False,
    )


def curve(axis: Any, xs: Sequence[float], name: str, values: Sequence[Mapping[str, float]]) -> None:
    """Draw a line of means, with a band of one standard deviation if there were repetitions."""
    means = [value["mean"] for value in values]
    style = STYLES[name]
    axis.plot(xs, means, markersize=4, label=name, **style)
    if any(value["std"] > 0 for value in values):
        ends = [[value["mean"] + sign * value["std"] for value in values] for sign in (-1, 1)]
        axis.fill_between(xs, *ends, color=style["color"], alpha=0.15, linewidth=0)


def constant_line(axis: Any, name: str, value: Mapping[str, float]) -> None:
    """Draw a method whose accuracy does not depend on the number of queries."""
    style = STYLES[name]
    axis.axhline(value["mean"], label=name, linewidth=1.5, **style)
    axis.axhspan(
        value["mean"] - value["std"],
        value["mean"] + value["std"],
        color=style["color"],
        alpha=0.12,
        linewidth=0,
    )


def noise_free_line(axis: Any, value: float) -> None:
    axis.axhline(
        value,
        color="C0",
        linewidth=1,
        linestyle=(0, (1, 3)),
        label="the paper's model without noise (not private)",
    )


def accuracy_scale(axis: Any) -> None:
    """Limit the scale to accuracies that matter; bands may reach beyond them."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0.3), min(high, 1.03))


def not_run(axis: Any, title: str, reason: str) -> None:
    """Write into a panel why it was not run."""
    import textwrap

    axis.set(title=title, xticks=[], yticks=[])
    axis.text(
        0.5,
        0.5,
        "not run\n\n" + textwrap.fill(reason, 44),
        ha="center",
        va="center",
        fontsize=8,
        transform=axis.transAxes,
    )


def not_run_figure(reason: str) -> Any:
    """Return a picture that says why a figure was not run."""
    figure, axes = grid(1, 1)
    not_run(axes[0, 0], "", reason)
    return figure


def legend(figure: Any, axes: Any, columns: int = 3) -> None:
    """Draw one legend below all panels."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        figure.legend(
            found.values(),
            found.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
        )


Results = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, whether it holds here, and the numbers found."""

    claim: str
    holds: bool | None  # None: not run
    found: str


@dataclass(frozen=True)
class Figure:
    """One figure or table of the paper."""

    name: str
    title: str
    compute: Callable[[Run], Results]  # returns plain data only
    draw: Callable[[Results], Any]  # returns a matplotlib figure
    claims: Callable[[Results], list[Claim]]
    differs: str  # what differs from the paper

    def reproduce(self, run: Run) -> Results:
        """Compute the results, save them and draw the figure."""
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
            "claims": [asdict(claim) for claim in self._evaluate_claims(results)],
            "differs": self.differs,
            "seconds": time.monotonic() - started,
            "machine": machine(),
        }
        path.write_text(json.dumps(kept, indent=1))
        self.picture(results, run.out, run.quick)
        return kept

    def _evaluate_claims(self, results: Results) -> list[Claim]:
        return self.claims(results) if _was_run(results) else [Claim(self.title, None, "not run")]

    def picture(self, results: Results, out: Path, quick: bool) -> None:
        """Draw the results as PNG and PDF."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        drawn = self.draw(results) if _was_run(results) else not_run_figure(results["not run"])
        drawn.suptitle(
            f"{self.title}{' (quick: not to be reported)' if quick else ''}", fontsize=12
        )
        for ending in ("png", "pdf"):
            drawn.savefig(out / f"{self.name}.{ending}", dpi=130)
        pyplot.close(drawn)


def _was_run(results: Results) -> bool:
    return set(results) != {"not run"}


def machine() -> dict[str, Any]:
    """Return the machine and the versions that the numbers were computed with."""
    return {
        "holdfast": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
