"""Figure 9: the smallest batch that certifies k = 50 for 95% of the queries, by depth."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from holdfast.examples.demo import Task
from holdfast.layers.initial import make_model, zero_output
from holdfast.networks.recipe import Recipe
from holdfast.networks.training import train

from .figure import Claim, Figure, Results, grid
from .run import Run
from .table_data import amex, large_table

DISTANCE, SHARE, WIDTH = 50, 0.95, 128
DEPTHS = (1, 2, 3, 4)
STARTS = {
    "default": "random start, as in the paper: hardly learns",
    "paired": "start that answers 0: learns",
}
RECIPE = Recipe(epochs=2, learning_rate=0.02, clip=0.01, loss="binary_cross_entropy")
_SEARCH_FACTOR = 1.2  # the search stops within this factor of the smallest batch


def compute(run: Run) -> Results:
    task = _table(run)
    task = task.subsample(600, 100) if run.quick else task
    depths, distance = ((1, 2), 1) if run.quick else (DEPTHS, DISTANCE)
    found = {
        start: {str(depth): _smallest_batch(run, task, start, depth, distance) for depth in depths}
        for start in STARTS
    }
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
    """Return AMEX if the folder has it, or else the default large table."""
    if run.folder is not None and (run.folder / "amex" / "train_data.csv").is_file():
        return amex(run.folder)
    return large_table(run.folder)


def _smallest_batch(run: Run, task: Task, start: str, depth: int, distance: int) -> Results:
    """Search for the smallest sufficient batch, by doubling and then geometric bisection.

    All batch sizes that were tried are part of the result.
    """
    tried: dict[int, Results] = {}

    def enough(size: int) -> bool:
        tried[size] = certified(run, task, start, depth, size, distance)
        return bool(tried[size]["share"] >= SHARE)

    low, high = 0, min(len(task.y), 2 * distance)
    while not enough(high):
        low = high
        if high == len(task.y):
            return {"smallest": None, "tried": {str(size): found for size, found in tried.items()}}
        high = min(len(task.y), 2 * high)
    while low and high / low > _SEARCH_FACTOR and high - low > 1:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return {"smallest": high, "tried": {str(size): found for size, found in tried.items()}}


def certified(run: Run, task: Task, start: str, depth: int, size: int, distance: int) -> Results:
    """Return the certified share of queries and the accuracy of a network of the given depth.

    It is trained on the first `size` records as one batch.
    """
    recipe = replace(RECIPE, batch_size=size)
    config = {
        "cell": "depth",
        "task": task.digest,
        "recipe": recipe.as_dict(),
        "depth": depth,
        "start": start,
        "width": WIDTH,
        "distance": distance,
    }

    def compute() -> Any:
        model = make_model("mlp:" + ",".join([str(WIDTH)] * depth), task.x.shape[1], 1, 0)
        model = zero_output(model) if start == "paired" else model
        trained = train(
            model,
            task.x[:size],
            task.y[:size],
            recipe,
            neighbours="replace",
            distances=[distance],
            progress=False,
        )
        certificate = trained.certify(task.query_x)
        right = float((certificate.labels == task.query_y).double().mean())
        return {"share": certificate.share(1), "accuracy": right}, {"ranks": certificate.distances}

    return run.store.cell(f"depth {depth}, {start} start, batch {size:,}", config, compute).figures


def draw(results: Results) -> Any:
    figure, axes = grid(1, 1)
    figure.set_size_inches(9, 5.4)
    axis = axes[0, 0]
    for number, (start, by_depth) in enumerate(results["smallest"].items()):
        for depth, found in by_depth.items():
            size, place = found["smallest"], int(depth) + 0.4 * number - 0.2
            colour = f"C{number}"
            bar = axis.bar(
                place,
                size or results["records"],
                0.38,
                color=colour if size else "white",
                edgecolor=colour,
                hatch=None if size else "//",
            )
            axis.bar_label(bar, [_bar_text(found, results["records"])], fontsize=7, padding=2)
        axis.bar(0, 0, color=f"C{number}", label=STARTS[start])
    title = (
        f"k = {results['distance']} "
        f"(replace) certified for {results['share']:.0%} of queries; {results['source']}"
    )
    axis.set(
        yscale="log",
        xlabel=f"hidden layers of {WIDTH}",
        ylabel="smallest batch",
        xlim=(0.4, len(by_depth) + 0.6),
        xticks=[int(d) for d in by_depth],
    )
    axis.set_title(title, fontsize=9)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * 8)
    axis.legend(fontsize=8, loc="upper left")
    return figure


def _bar_text(found: Results, records: int) -> str:
    accuracy = found["tried"][str(found["smallest"] or max(map(int, found["tried"])))]["accuracy"]
    size = f"{found['smallest']:,}" if found["smallest"] else f"more than\n{records:,}"
    return f"{size}\naccuracy {accuracy:.2f}"


def claims(results: Results) -> list[Claim]:
    text = "the batch size needed grows steeply with depth (by half or more per layer)"
    return [
        _growth_claim(results, start, f"{text}; {describe}") for start, describe in STARTS.items()
    ]


def _growth_claim(results: Results, start: str, text: str) -> Claim:
    by_depth, records = results["smallest"][start], results["records"]
    sizes = [found["smallest"] or float("inf") for found in by_depth.values()]
    known = [
        (earlier, min(later, records))
        for earlier, later in pairwise(sizes)
        if earlier < float("inf")
    ]
    describe = "; ".join(
        f"{depth}: {_bar_text(found, records)}".replace("\n", ", ").replace("than,", "than")
        for depth, found in by_depth.items()
    )
    return Claim(
        text,
        all(later >= 1.5 * earlier for earlier, later in known) if known else None,
        f"smallest batch by depth: {describe}",
    )


FIGURE = Figure(
    "depth",
    "Figure 9. The smallest batch that certifies, against depth",
    compute,
    draw,
    claims,
    "On another large table if AMEX is not available; two full-batch steps; the paper gives no "
    "learning rate, clip or number of steps.",
)
