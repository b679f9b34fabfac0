"""Figure 9: how many records a batch needs before k = 50 is certified for 95% of queries, by depth."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..certified import train
from ..data import Task, amex, large_table
from ..errors import InvalidInput
from ..models import make_model
from ..training import Recipe
from .figure import Claim, Figure, Results
from .panels import grid, not_run
from .run import Run

DISTANCE, SHARE, WIDTH = 50, 0.95, 128
DEPTHS = (1, 2, 3, 4)
RECIPE = Recipe(epochs=2, learning_rate=0.02, clip=0.01, loss="binary_cross_entropy")
_FINE = 1.2  # how close to the smallest batch the search goes


def compute(run: Run) -> Results:
    try:
        task = _table(run)
    except InvalidInput as reason:
        return {"not run": str(reason)}
    task = task.small(600, 100) if run.quick else task
    depths, distance = ((1, 2), 1) if run.quick else (DEPTHS, DISTANCE)
    found = {str(depth): _smallest(run, task, depth, distance) for depth in depths}
    return {
        "distance": distance,
        "share": SHARE,
        "records": len(task.y),
        "source": task.source,
        "recipe": RECIPE.as_dict(),
        "smallest": found,
        "relation": "replace",
    }


def _table(run: Run) -> Task:
    """AMEX if it is there, or else the large table at hand."""
    if run.folder is not None and (run.folder / "amex" / "train_data.csv").is_file():
        return amex(run.folder)
    return large_table(run.folder)


def _smallest(run: Run, task: Task, depth: int, distance: int) -> Results:
    """By doubling and then halving, geometrically; every batch that was tried is kept."""
    tried: dict[int, Results] = {}

    def enough(size: int) -> bool:
        tried[size] = certified(run, task, depth, size, distance)
        return bool(tried[size]["share"] >= SHARE)

    low, high = 0, min(len(task.y), 2 * distance)
    while not enough(high):
        low = high
        if high == len(task.y):
            return {"smallest": None, "tried": tried}
        high = min(len(task.y), 2 * high)
    while low and high / low > _FINE and high - low > 1:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return {"smallest": high, "tried": tried}


def certified(run: Run, task: Task, depth: int, size: int, distance: int) -> Results:
    """The share of queries certified, and the accuracy, by a network of that depth, trained on the first `size` records as one batch."""
    recipe = replace(RECIPE, batch_size=size)
    config = {"cell": "depth", "task": task.digest, "recipe": recipe.as_dict(), "depth": depth, "width": WIDTH, "distance": distance}

    def compute() -> Any:
        model = make_model("mlp:" + ",".join([str(WIDTH)] * depth), task.x.shape[1], 1, 0)
        trained = train(model, task.x[:size], task.y[:size], recipe, "replace", distances=[distance], progress=False)
        certificate = trained.certify(task.query_x)
        right = float((certificate.labels == task.query_y).double().mean())
        return {"share": certificate.share(1), "accuracy": right}, {"ranks": certificate.distances}

    return run.store.cell(f"depth {depth}, batch {size:,}", config, compute).figures


def draw(results: Results) -> Any:
    figure, axes = grid(1, 1)
    figure.set_size_inches(7, 5)
    axis = axes[0, 0]
    if "smallest" not in results:
        not_run(axis, "large table", results["not run"])
        return figure
    for depth, found in results["smallest"].items():
        most = found["smallest"]
        bar = axis.bar(depth, most or results["records"], color="C0" if most else "white", edgecolor="C0", hatch=None if most else "//")
        axis.bar_label(bar, [f"{most:,}" if most else f"more than the\n{results['records']:,} at hand"], fontsize=9, padding=2)
    axis.set(
        yscale="log",
        xlabel=f"hidden layers of {WIDTH}",
        ylabel="smallest batch",
        title=f"k = {results['distance']} (replace) certified for {results['share']:.0%} of queries",
    )
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * 3)
    axis.text(0.02, 0.97, results["source"], transform=axis.transAxes, fontsize=8, va="top")
    return figure


def claims(results: Results) -> list[Claim]:
    if "smallest" not in results:
        return [Claim("the batch size needed grows steeply with depth", None, "not run")]
    sizes = [found["smallest"] or float("inf") for found in results["smallest"].values()]
    told = ", ".join(
        f"{depth}: {found['smallest'] or 'more than ' + format(results['records'], ',')}" for depth, found in results["smallest"].items()
    )
    known = [(earlier, min(later, results["records"])) for earlier, later in pairwise(sizes) if earlier < float("inf")]
    grows = all(later >= 1.5 * earlier for earlier, later in known) if known else None
    return [Claim("the batch size needed grows steeply with depth (by half or more a layer)", grows, f"smallest batch by depth: {told}")]


FIGURE = Figure(
    "depth",
    "Figure 9. The smallest batch that certifies, against depth",
    compute,
    draw,
    claims,
    "On the large table at hand where AMEX is not; two full-batch steps; the paper gives no learning rate, clip or number of steps.",
)
