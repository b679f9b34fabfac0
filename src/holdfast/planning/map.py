"""The map: which way to publish predictions wins where, over epsilon and the number of queries."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from .ways import WAYS


class Winner(Protocol):
    """The way that wins in a cell, and its expected accuracy."""

    @property
    def way(self) -> str: ...
    @property
    def accuracy(self) -> float | None: ...


_COLOURS = {
    "answers from a head": "#8ec1f0",
    "release of the head": "#f2b134",
    "answers from an ensemble": "#7fd1c7",
    "answers from boxes": "#b5d99c",
    "sparse vector": "#c3b1e1",
    "noisy descent": "#e8998d",
    "DP-SGD": "#d9685a",
    "public labels alone": "#cfcfcf",
}


def draw_map(
    panels: Mapping[str, Mapping[tuple[float, int], Winner]],
    path: str | PathLike[str],
    *,
    title: str = "",
) -> None:
    """Draw, per panel, the winner of every (epsilon, queries) as a coloured cell.

    Args:
        panels: The winners by epsilon and number of queries, by the panel's title.
        path: The file to write.
        title: The title of the figure.
    """
    from matplotlib import pyplot

    sizes = [len({queries for _, queries in wins}) for wins in panels.values()]
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(max(6.4, 1.6 + 0.95 * sum(sizes)), 4.4),
        layout="constrained",
        squeeze=False,
    )
    for axis, (name, wins) in zip(axes[0], panels.items(), strict=True):
        draw_panel(axis, name, wins)
    add_legend(figure, {cell.way for wins in panels.values() for cell in wins.values()})
    lines = (textwrap.fill(line, int(11 * figure.get_figwidth())) for line in title.splitlines())
    figure.suptitle("\n".join(lines), fontsize=10)
    figure.savefig(Path(path), dpi=130)
    pyplot.close(figure)


def draw_panel(axis: Any, name: str, wins: Mapping[tuple[float, int], Winner]) -> None:
    """Draw one panel: a coloured cell with its accuracy per epsilon and number of queries."""
    epsilons = sorted({epsilon for epsilon, _ in wins})
    counts = sorted({queries for _, queries in wins})
    for row, epsilon in enumerate(epsilons):
        for column, queries in enumerate(counts):
            cell = wins[epsilon, queries]
            axis.add_patch(_square(column, row, _COLOURS[cell.way]))
            text = f"{cell.accuracy or 0.0:.3f}".removeprefix("0")
            axis.text(column, row, text, ha="center", va="center", fontsize=9)
    axis.set(
        xlim=(-0.5, len(counts) - 0.5),
        ylim=(-0.5, len(epsilons) - 0.5),
        xlabel="queries Q",
        ylabel="total epsilon",
        title=name,
    )
    axis.set_xticks(range(len(counts)), [f"{count:,}" for count in counts], fontsize=8)
    axis.set_yticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])


def _square(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", lw=2)


def add_legend(figure: Any, ways: set[str]) -> None:
    """Add a legend of the ways that win somewhere."""
    from matplotlib.patches import Patch

    handles = [Patch(color=_COLOURS[way.name], label=way.name) for way in WAYS if way.name in ways]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
