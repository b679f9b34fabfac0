"""Figure 7: OctMNIST: the share of queries certified at k, and the accuracy on Drusen, for several clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..baselines.dpsgd import predict
from ..data.octmnist import DRUSEN
from ..errors import InvalidInput
from .bench import Bench
from .cells import Certified, certificates
from .figure import Claim, Figure, Results
from .panels import grid, not_run
from .run import Run

_CLIPS = (0.03, 0.1, 0.3, 1.0, 3.0)
_DISTANCES = (1, 2, 5, 10, 20, 50)


def compute(run: Run) -> Results:
    try:
        bench = run.bench("octmnist")
    except InvalidInput as reason:
        return {"not run": str(reason)}
    clips, distances = ((0.1, 1.0), (1, 2)) if run.quick else (_CLIPS, _DISTANCES)
    curves = {}
    for clip in clips:
        setting = replace(bench.paper, recipe=replace(bench.paper.recipe, clip=clip), distances=distances)
        curves[str(clip)] = _shares(certificates(run.store, bench, setting), bench, len(distances))
    return {
        "distances": distances,
        "curves": curves,
        "Drusen before fine-tuning": _before(bench),
        "relation": "replace",
        "source": bench.task.source,
    }


def _shares(found: Certified, bench: Bench, ranks: int) -> Results:
    """Each k by itself: shares, nothing that could be released."""
    drusen, right = bench.task.query_groups == DRUSEN, found.certificate.labels == found.right
    certified = [(found.certificate.distances > rank).double() for rank in range(ranks)]
    return {
        "shares": [float(share.mean()) for share in certified],
        "shares of Drusen": [float(share[drusen].mean()) for share in certified],
        "accuracy": found.accuracy,
        "Drusen": float(right[drusen].double().mean()),
    }


def _before(bench: Bench) -> float:
    """The accuracy on Drusen of the pre-trained network."""
    assert bench.pretrained is not None
    labels = predict(bench.pretrained, bench.task.query_x)
    return float((labels == bench.task.query_y)[bench.task.query_groups == DRUSEN].double().mean())


def draw(results: Results) -> Any:
    figure, axes = grid(1, 2)
    if "curves" not in results:
        for axis in axes[0]:
            not_run(axis, "OctMNIST", results["not run"])
        return figure
    left, right = axes[0]
    for number, (clip, found) in enumerate(results["curves"].items()):
        left.plot(results["distances"], found["shares"], marker="o", markersize=4, label=f"clip {float(clip):g}", color=f"C{number}")
    left.axhline(0.9, color="grey", linewidth=1, linestyle=":", label=".9")
    left.set(
        xscale="log",
        xlabel="k exchanged records (replace)",
        ylabel="share of all test queries certified",
        ylim=(0, 1.03),
        title="certified at k",
    )
    left.grid(alpha=0.3)
    left.legend(fontsize=8)
    clips = list(results["curves"])
    places = torch.arange(len(clips)).double()
    for shift, name, colour in ((-0.2, "Drusen", "C3"), (0.2, "accuracy", "C7")):
        values = [results["curves"][clip][name] for clip in clips]
        bars = right.bar(places + shift, values, 0.38, color=colour, label="Drusen images" if name == "Drusen" else "all test images")
        right.bar_label(bars, fmt="%.2f", fontsize=7)
    right.axhline(results["Drusen before fine-tuning"], color="black", linestyle=":", label="Drusen, before fine-tuning")
    right.set(
        xticks=places,
        xticklabels=[f"{float(clip):g}" for clip in clips],
        xlabel="clip",
        ylabel="accuracy, without noise",
        ylim=(0, 1.15),
        title="accuracy",
    )
    right.legend(fontsize=8, loc="upper left", ncols=3)
    return figure


def claims(results: Results) -> list[Claim]:
    if "curves" not in results:
        return [Claim("OctMNIST: more than 90% certified at small k", None, "not run")]
    shares = {clip: found["shares"][0] for clip, found in results["curves"].items()}
    accuracy = [found["Drusen"] for found in results["curves"].values()]
    told = ", ".join(f"clip {float(clip):g}: {share:.3f}" for clip, share in shares.items())
    published = shares.get("1.0", 0.0)
    return [
        Claim("OctMNIST: more than 90% certified at small k (clip 1, k = 1)", published > 0.9, f"share certified at k = 1: {told}"),
        Claim(
            "OctMNIST: about 50% on Drusen before fine-tuning, .6 to .88 after it, by clip",
            min(accuracy) > 0.55 and max(accuracy) > 0.7,
            f"before {results['Drusen before fine-tuning']:.3f}; after, from {min(accuracy):.3f} to {max(accuracy):.3f}",
        ),
    ]


FIGURE = Figure(
    "octmnist",
    "Figure 7. OctMNIST: certified share and accuracy by clip",
    compute,
    draw,
    claims,
    "Another split of the same scans, with fewer images; the paper does not say which clips it drew.",
)
