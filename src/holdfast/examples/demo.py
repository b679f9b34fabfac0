"""The paper's blobs, the form of every data set of the experiments, and the demo on the blobs.

The splits of a task are fixed and public. Blobs are two Gaussian clouds, with cubic features so
that the decision boundary may bend.

It prints a table and draws a map of the stable distance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..certificates import Certificate
from ..checks import make_folder
from ..files import digest
from ..networks.certified import Certified
from ..networks.recipe import Recipe
from ..networks.training import train


@dataclass(frozen=True, eq=False)
class Task:
    """Private records, queries with their right answers, and public records."""

    name: str
    source: str  # what was read, and what it represents
    x: Tensor  # the private records
    y: Tensor
    query_x: Tensor
    query_y: Tensor
    public_x: Tensor  # public records, for whitening and pre-training
    tune_x: Tensor  # public records whose labels are known, for choosing settings
    tune_y: Tensor
    public_y: Tensor | None = None
    query_groups: Tensor | None = None  # a finer class per query, for reports
    persons: Tensor | None = None  # the owner of each private record

    @cached_property
    def digest(self) -> str:
        """The digest of the name and all tensors; equal digests mean equal results."""
        return digest("task", self.name, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def with_features(self, of: Callable[[Tensor], Tensor]) -> Task:
        """Return the same task with other features, computed by a public rule for each row."""
        return replace(
            self,
            x=of(self.x),
            query_x=of(self.query_x),
            public_x=of(self.public_x),
            tune_x=of(self.tune_x),
        )

    def subsample(self, records: int, queries: int) -> Task:
        """Return a small, fixed random sample, for quick runs whose results are not reported."""
        cut = {"": records, "query_": queries, "public_": records, "tune_": records}
        chosen = {}
        for part, most in cut.items():
            count = len(getattr(self, f"{part}x"))
            rows = torch.from_numpy(np.random.default_rng(0).permutation(count)[:most].copy())
            for field in (f"{part}x", f"{part}y", f"{part}groups", f"{part}persons"):
                if isinstance(vars(self).get(field), Tensor):
                    chosen[field] = vars(self)[field][rows]
        return replace(self, source=f"{self.source} (a small part of it)", **chosen)


def floats(values: Any) -> Tensor:
    """Return an array as a float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def labels(values: Any) -> Tensor:
    """Return an array of labels, of any shape, as a flat int64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values).reshape(-1).astype(np.int64))


# The coordinate c of the centres (c, c) and (-c, -c), and the standard deviation.
_SETTINGS = {"far": (1.25, 0.35), "close": (1.0, 0.75)}


def blobs(name: str = "close", records: int = 3750) -> Task:
    """Return the task with the "far" or the "close" blobs.

    `records` points are drawn with seed 0; four fifths of them are the private records, the others
    the queries. As many points again, drawn with seed 1, are public.
    """
    from sklearn.model_selection import train_test_split

    x, y = _draw(name, records, seed=0)
    x, query_x, y, query_y = train_test_split(x, y, test_size=0.2, random_state=0)
    public_x, tune_x, _, tune_y = train_test_split(
        *_draw(name, records, seed=1), test_size=0.2, random_state=0
    )
    parts = [features(torch.from_numpy(part)) for part in (x, query_x, public_x, tune_x)]
    return Task(
        name=f"blobs-{name}",
        source=f"{name} blobs: two Gaussian clouds",
        x=parts[0],
        y=labels(y),
        query_x=parts[1],
        query_y=labels(query_y),
        public_x=parts[2],
        tune_x=parts[3],
        tune_y=labels(tune_y),
    )


def _draw(name: str, records: int, seed: int) -> tuple[object, object]:
    from sklearn.datasets import make_blobs

    centre, spread = _SETTINGS[name]
    centres = [[centre, centre], [-centre, -centre]]
    drawn: tuple[object, object] = make_blobs(
        records, centers=centres, cluster_std=[spread, spread], random_state=seed
    )
    return drawn


def features(points: Tensor) -> Tensor:
    """Return the features (x, x^2, x^3) of points in the plane, in float32."""
    return torch.cat([points, points**2, points**3], dim=1).float()


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
