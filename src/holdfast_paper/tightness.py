"""Figure 6: how many values of k are enough.

The distance is the value of k, as in the paper, or its rank, which is private.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from holdfast.mechanisms import CauchyResponse

from .cells import certificates, summary
from .figure import Claim, Figure, Results, grid
from .run import Run

EPSILON = 1.0
_COUNTS = (1, 2, 3, 5, 10, 20, 50, 100)
VALUE, RANK = (
    "distance = the largest k certified (the paper's; not private with gaps)",
    "distance = how many k are certified (private)",
)


def compute(run: Run) -> Results:
    bench = run.bench("imdb")
    reach = bench.paper.reach
    counts = [count for count in _COUNTS if count <= reach]
    repeats = [
        certificates(run.store, bench, bench.paper, seed=seed) for seed in range(bench.seeds)
    ]
    curves: dict[str, list[Any]] = {VALUE: [], RANK: []}
    grids = [distance_grid(count, reach) for count in counts]
    for values in grids:
        steps = torch.tensor(values)
        ranks = [(found.certificate.distances[:, None] >= steps).sum(1) for found in repeats]
        largest = [torch.where(rank > 0, steps[(rank - 1).clamp(min=0)], 0) for rank in ranks]
        for name, distances in ((VALUE, largest), (RANK, ranks)):
            curves[name].append(
                summary(
                    [
                        float(torch.exp(-EPSILON / 6 * distance.double()).mean())
                        for distance in distances
                    ]
                )
            )
    plain = summary([found.expected(CauchyResponse(EPSILON)) for found in repeats])
    return {
        "counts": counts,
        "grids": grids,
        "curves": curves,
        "accuracy with all k": plain,
        "queries": len(bench.task.query_y),
        "relation": "replace",
    }


def distance_grid(count: int, reach: int) -> list[int]:
    """Return `count` values of k up to `reach`, denser at the beginning, as the paper advises."""
    if count >= reach:
        return list(range(1, reach + 1))
    if count == 1:
        return [max(1, reach // 10)]
    wanted = np.geomspace(1, reach, count)
    values: list[int] = []
    for value in wanted:
        values.append(max(round(float(value)), values[-1] + 1 if values else 1))
    return values


def draw(results: Results) -> Any:
    figure, axes = grid(1, 1)
    figure.set_size_inches(7.5, 5)
    axis = axes[0, 0]
    for number, (name, values) in enumerate(results["curves"].items()):
        means, stds = [value["mean"] for value in values], [value["std"] for value in values]
        axis.errorbar(
            results["counts"],
            means,
            stds,
            marker="os"[number],
            linestyle=("--", "-")[number],
            color=("C0", "C3")[number],
            label=name,
            capsize=3,
        )
    axis.axhline(1.0, color="C7", linestyle=":", label="global sensitivity")
    title = f"IMDB, {results['queries']:,} queries, replace"
    axis.set(
        xscale="log",
        xlabel="number of values of k",
        ylabel=r"mean bound on smooth sensitivity, $e^{-\epsilon\kappa/6}$",
        ylim=(0, 1.05),
        title=title,
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper right")
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for name in (VALUE, RANK):
        gain = {
            count: 1 - value["mean"]
            for count, value in zip(results["counts"], results["curves"][name], strict=True)
        }
        holds = gain[10] >= 0.8 * max(gain.values()) > 0 if 10 in gain else None
        what = "rank (private)" if name == RANK else "k itself (not private)"
        describe = ", ".join(f"{count}: {value:.3f}" for count, value in gain.items())
        listed.append(
            Claim(
                f"about 10 values of k give most of the gain, with {what} as distance",
                holds,
                f"mean of 1 - bound by number of values of k: {describe}",
            )
        )
    return listed


FIGURE = Figure(
    "tightness",
    "Figure 6. Tightness against the number of values of k, epsilon = 1",
    compute,
    draw,
    claims,
    "The paper uses the value of k as distance, which changes by whole gaps between neighbours; "
    "only the rank may be used.",
)
