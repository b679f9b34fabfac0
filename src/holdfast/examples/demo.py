"""The demo: the paper's blobs, certified at every distance from 1 to 100.

It prints a table and draws a map of the stable distance.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..certificates import Certificate
from ..checks import make_folder
from ..models import Certified, train
from ..training import Recipe
from .blobs import Task, blobs, features

RECIPE = Recipe(
    epochs=4, learning_rate=2.0, decay=0.6, min_learning_rate=1e-3, clip=0.06, batch_size=3000
)
NAMES = ("far", "close")
_SHOWN = (1, 2, 5, 10, 20, 50, 100)
EXTENT = 3.8


@dataclass(frozen=True)
class Panel:
    """One data set of the demo, with its trained model and the certificate of its test points."""

    name: str
    data: Task
    certified: Certified
    certificate: Certificate

    @property
    def accuracy(self) -> float:
        return float((self.certificate.labels == self.data.query_y).double().mean())


def network() -> nn.Sequential:
    """Return the paper's network for blobs, initialised with a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 2))


def run_demo(
    out: Path, console: Console, max_distance: int = 100, resolution: int = 160
) -> dict[str, Any]:
    """Train, print and draw; return the figures as plain data."""
    started = time.monotonic()
    picture = make_folder(out) / "demo.png"
    panels = []
    for name in NAMES:
        data = blobs(name)
        console.print(
            f"[bold]blobs, {name}[/bold]: 3000 records, 6-128-2 ReLU network, "
            f"4 full-batch steps, up to {max_distance} records added or removed"
        )
        certified = train(
            network(),
            data.x,
            data.y,
            RECIPE,
            neighbours="add_remove",
            max_distance=max_distance,
            dataset=f"blobs-{name}",
            progress=console.is_terminal and not console.quiet,
        )
        panels.append(Panel(name, data, certified, certified.certify(data.query_x)))
    console.print(_table(panels, max_distance))
    draw(panels, picture, resolution)
    console.print(f"Map of the stable distance: {picture}  ({time.monotonic() - started:.0f} s)")
    console.print("[dim]Certificates and accuracies are for the owner: they are not private.[/dim]")
    return {
        panel.name: {
            "accuracy": panel.accuracy,
            "certified_share": {k: panel.certificate.share(k) for k in range(1, max_distance + 1)},
        }
        for panel in panels
    }


def _table(panels: list[Panel], max_distance: int) -> Table:
    table = Table(
        title="Share of 750 test points whose label no k added or removed records can change"
    )
    table.add_column("k", justify="right")
    for panel in panels:
        table.add_column(f"{panel.name} (accuracy {panel.accuracy:.1%})", justify="right")
    for k in (k for k in _SHOWN if k <= max_distance):
        table.add_row(str(k), *(f"{panel.certificate.share(k):.1%}" for panel in panels))
    return table


def grid_of_points(resolution: int) -> Tensor:
    """Return a grid of points in the plane, of shape (resolution, resolution, 2)."""
    side = torch.linspace(-EXTENT, EXTENT, resolution, dtype=torch.float64)
    return torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)


def draw(panels: list[Panel], path: Path, resolution: int) -> None:
    """Draw the stable distance and the decision boundary in the plane, one panel per data set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5.2 * len(panels) + 0.8, 5), layout="constrained", squeeze=False
    )
    plane = grid_of_points(resolution)
    for axis, panel in zip(axes[0], panels, strict=True):
        certificate = panel.certified.certify(features(plane.view(-1, 2)))
        image = _panel(axis, panel, plane, certificate)
    most = panels[0].certified.distances[-1]
    bar = figure.colorbar(image, ax=list(axes[0]), shrink=0.9)
    bar.set_label(f"stable distance k (certified up to {most})")
    figure.suptitle("How many records can come or go without changing the label of a point")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, panel: Panel, plane: Tensor, certificate: Certificate) -> Any:
    shape = plane.shape[:2]
    distances = certificate.distances.view(shape).numpy()
    extent = (-EXTENT, EXTENT, -EXTENT, EXTENT)
    most = panel.certified.distances[-1]
    image = axis.imshow(
        distances,
        origin="lower",
        extent=extent,
        cmap="viridis",
        vmin=0,
        vmax=most,
        interpolation="nearest",
    )
    axis.contour(
        plane[0, :, 0],
        plane[:, 0, 1],
        certificate.labels.view(shape).numpy(),
        levels=[0.5],
        colors="red",
        linewidths=2,
    )
    for label, colour in ((0, "white"), (1, "black")):
        cloud = panel.data.x[panel.data.y == label][:250]
        axis.scatter(
            cloud[:, 0],
            cloud[:, 1],
            s=4,
            color=colour,
            alpha=0.6,
            linewidths=0,
            label=f"records, class {label}",
        )
    axis.set(
        title=f"blobs, {panel.name}: accuracy {panel.accuracy:.1%}",
        xlabel="$x_1$",
        ylabel="$x_2$",
        xlim=extent[:2],
        ylim=extent[2:],
    )
    axis.plot([], [], color="red", label="decision boundary")
    axis.legend(loc="upper right", fontsize=8, facecolor="lightgrey", framealpha=0.9, markerscale=2)
    return image
