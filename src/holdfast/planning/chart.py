"""The figure of a simulation: accuracy and share of true answers, one line a mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .outcomes import Outcome

MEASURES = (("accuracy", "expected accuracy"), ("balanced_accuracy", "expected balanced accuracy"), ("truth", "share answered truly"))
_MARKERS = "osD^vPX"


def draw(
    curves: Mapping[str, Sequence[Outcome]],
    xs: Sequence[float],
    xlabel: str,
    title: str,
    plain: Outcome,
    path: Path,
) -> None:
    """One panel a measure; `plain` is what the model would reach without noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(15, 5), layout="constrained")
    for axis, (measure, label) in zip(axes, MEASURES, strict=True):
        _panel(axis, curves, xs, measure, getattr(plain, measure))
        axis.set(xlabel=xlabel, ylabel=label, xscale="log")
        axis.grid(alpha=0.3)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{title}\nnot private: for the owner", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, curves: Mapping[str, Sequence[Outcome]], xs: Sequence[float], measure: str, plain: float) -> None:
    for number, (name, outcomes) in enumerate(curves.items()):
        style = "--" if "paper" in name else "-"
        values = [getattr(outcome, measure) for outcome in outcomes]
        axis.plot(xs, values, style, marker=_MARKERS[number % len(_MARKERS)], markersize=4, label=name, color=f"C{number}")
    axis.axhline(plain, color="black", linewidth=1, linestyle=":", label="without noise (not private)")
