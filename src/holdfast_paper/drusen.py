"""Figure 7: certified share of queries at k and accuracy on Drusen by clip, on OctMNIST."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.planning.ways import predict

from .bench import Bench
from .cells import Evaluation, certificates
from .figure import Claim, Figure, Results, grid
from .run import Run
from .scans_and_reviews import DRUSEN, NORMAL

_CLIPS = (0.03, 0.1, 0.3, 1.0, 3.0)
_DISTANCES = (1, 2, 5, 10, 20, 50)


def compute(run: Run) -> Results:
    bench = run.bench("octmnist")
    clips, distances = ((0.1, 1.0), (1, 2)) if run.quick else (_CLIPS, _DISTANCES)
    curves = {}
    for clip in clips:
        setting = replace(
            bench.paper, recipe=replace(bench.paper.recipe, clip=clip), distances=distances
        )
        curves[str(clip)] = _shares(certificates(run.store, bench, setting), bench, len(distances))
    return {
        "distances": distances,
        "curves": curves,
        "Drusen before fine-tuning": _pretrained_accuracy(bench),
        "relation": "replace",
        "source": bench.task.source,
    }


def _shares(found: Evaluation, bench: Bench, ranks: int) -> Results:
    """Return the certified share at each k by itself, and accuracies; none may be released."""
    drusen, right = bench.task.query_groups == DRUSEN, found.certificate.labels == found.right
    certified = [(found.certificate.distances > rank).double() for rank in range(ranks)]
    return {
        "shares": [float(share.mean()) for share in certified],
        "shares of Drusen": [float(share[drusen].mean()) for share in certified],
        "accuracy": found.accuracy,
        "Drusen": float(right[drusen].double().mean()),
        "normal": float(right[bench.task.query_groups == NORMAL].double().mean()),
    }


def _pretrained_accuracy(bench: Bench) -> float:
    """Return the accuracy on Drusen of the pre-trained network."""
    assert bench.pretrained is not None
    labels = predict(bench.pretrained, bench.task.query_x)
    return float((labels == bench.task.query_y)[bench.task.query_groups == DRUSEN].double().mean())


def draw(results: Results) -> Any:
    figure, axes = grid(1, 2)
    _draw_shares(axes[0, 0], results)
    _draw_accuracy(axes[0, 1], results)
    return figure


def _draw_shares(axis: Any, results: Results) -> None:
    for number, (clip, found) in enumerate(results["curves"].items()):
        axis.plot(
            results["distances"],
            found["shares"],
            marker="o",
            markersize=4,
            label=f"clip {float(clip):g}",
            color=f"C{number}",
        )
    axis.axhline(0.9, color="grey", linewidth=1, linestyle=":", label=".9")
    axis.set(xscale="log", ylim=(0, 1.03), title="certified at k")
    axis.set(xlabel="k exchanged records (replace)", ylabel="share of all test queries certified")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _draw_accuracy(axis: Any, results: Results) -> None:
    clips = list(results["curves"])
    places = np.arange(len(clips))
    for shift, name, label, colour in (
        (-0.2, "Drusen", "Drusen images", "C3"),
        (0.2, "accuracy", "all test images", "C7"),
    ):
        bars = axis.bar(
            places + shift,
            [results["curves"][clip][name] for clip in clips],
            0.38,
            color=colour,
            label=label,
        )
        axis.bar_label(bars, fmt="%.2f", fontsize=7)
    axis.axhline(
        results["Drusen before fine-tuning"],
        color="black",
        linestyle=":",
        label="Drusen, before fine-tuning",
    )
    axis.set(
        xticks=places,
        xticklabels=[f"{float(clip):g}" for clip in clips],
        ylim=(0, 1.25),
        title="accuracy",
    )
    axis.set(xlabel="clip", ylabel="accuracy, without noise")
    axis.legend(fontsize=7, loc="upper left", ncols=2)


def claims(results: Results) -> list[Claim]:
    curves, before = results["curves"], results["Drusen before fine-tuning"]
    shares = ", ".join(
        f"clip {float(clip):g}: {found['shares'][0]:.3f}" for clip, found in curves.items()
    )
    accuracy = ", ".join(
        f"clip {float(clip):g}: {found['Drusen']:.3f} (normal {found['normal']:.3f})"
        for clip, found in curves.items()
    )
    published = curves.get("1.0")
    best = max((found["Drusen"] for found in curves.values() if found["normal"] > 0.5), default=0.0)
    return [
        Claim(
            "OctMNIST: more than 90% certified at small k (clip 1, k = 1)",
            None if published is None else published["shares"][0] > 0.9,
            f"share certified at k = 1: {shares}",
        ),
        Claim(
            "OctMNIST: Drusen is recognised by chance (.4 to .6) before fine-tuning, and up to .88 "
            "(here: at least .8) after it, normal scans by more than chance",
            0.4 <= before <= 0.6 and best >= 0.8,
            f"before {before:.3f}; after, {accuracy}",
        ),
    ]


FIGURE = Figure(
    "octmnist",
    "Figure 7. OctMNIST: certified share and accuracy by clip",
    compute,
    draw,
    claims,
    "Another split of the same scans, with fewer images; "
    "the paper does not say which clips it shows.",
)
