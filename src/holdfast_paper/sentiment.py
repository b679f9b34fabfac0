"""Figure 8: accuracy and certified share over training, on IMDB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.accounting import Budget
from holdfast.mechanisms import BudgetedResponse

from .bench import Setting
from .cells import certificates, choose
from .figure import Claim, Figure, Results, grid
from .run import Run

_EPOCHS = (1, 2, 3, 4, 6, 8, 10)
_DISTANCES = (1, 5, 10, 20)


def compute(run: Run) -> Results:
    bench = run.bench("imdb")
    epochs, distances = ((1, 2), (1, 2)) if run.quick else (_EPOCHS, _DISTANCES)
    accuracy, shares = [], []
    for count in epochs:
        setting: Setting = replace(
            bench.paper, recipe=replace(bench.paper.recipe, epochs=count), distances=distances
        )
        found = certificates(run.store, bench, setting)
        accuracy.append(found.accuracy)
        shares.append([found.certificate.share(rank + 1) for rank in range(len(distances))])
    ours = choose(run.store, bench, BudgetedResponse(Budget(10.0, 1e-5), 1000))
    return {
        "epochs": epochs,
        "distances": distances,
        "accuracy": accuracy,
        "shares": shares,
        "ours": {
            "setting": ours.describe(),
            "accuracy": certificates(run.store, bench, ours).accuracy,
        },
        "relation": "replace",
        "source": bench.task.source,
    }


def draw(results: Results) -> Any:
    figure, axes = grid(1, 1)
    figure.set_size_inches(7.5, 5)
    axis = axes[0, 0]
    axis.plot(
        results["epochs"],
        results["accuracy"],
        color="black",
        marker="o",
        label="accuracy, without noise",
    )
    for rank, distance in enumerate(results["distances"]):
        values = [shares[rank] for shares in results["shares"]]
        axis.plot(
            results["epochs"],
            values,
            marker="s",
            markersize=4,
            color=f"C{rank}",
            linestyle="--",
            label=f"certified at k = {distance} (replace)",
        )
    axis.axhline(
        results["ours"]["accuracy"],
        color="C3",
        linestyle=":",
        label="accuracy of our one-step setting",
    )
    axis.set(
        xlabel="epochs, each one full-batch step",
        ylabel="accuracy, or share of test queries",
        ylim=(0, 1.03),
        title="IMDB, the paper's settings",
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def claims(results: Results) -> list[Claim]:
    describe = ", ".join(
        f"{count}: {value:.3f}"
        for count, value in zip(results["epochs"], results["accuracy"], strict=True)
    )
    at_end = (
        results["accuracy"][results["epochs"].index(3)]
        if 3 in results["epochs"]
        else results["accuracy"][-1]
    )
    first, last = results["shares"][0][0], results["shares"][-1][0]
    return [
        Claim(
            "IMDB: accuracy near .80 with the paper's settings (3 epochs)",
            at_end >= 0.78,
            f"by epochs: {describe}; ours, one step, {results['ours']['accuracy']:.3f}",
        ),
        Claim(
            "IMDB: certificates weaken as training goes on",
            last < first,
            f"certified at k = {results['distances'][0]}: "
            f"{first:.3f} after the first step, {last:.3f} at the end",
        ),
    ]


FIGURE = Figure(
    "imdb",
    "Figure 8. IMDB: accuracy and certified share over training",
    compute,
    draw,
    claims,
    "Embeddings of 384 numbers in place of GPT-2's 768, standardised with public statistics; "
    "also trained beyond the paper's three epochs.",
)
