"""Figure 1: the bound on smooth sensitivity over the plane, for far and for close blobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.examples.demo import EXTENT, RECIPE, blobs, features, grid_of_points, network
from holdfast.networks.recipe import Recipe
from holdfast.networks.training import train

from .cells import accuracy
from .figure import Claim, Figure, Results, grid
from .run import Run

EPSILON = 1.0


def compute(run: Run) -> Results:
    """Compute stable distances on a grid of points, for k = 1..200 under replace."""
    side, reach = (24, 6) if run.quick else (120, 200)
    plane = features(grid_of_points(side).view(-1, 2))
    panels = {}
    for name in ("far", "close"):
        task = blobs(name)
        task = task.subsample(400, 100) if run.quick else task
        recipe = replace(RECIPE, batch_size=len(task.y))

        def certified(task: Any = task, recipe: Recipe = recipe) -> Any:
            model = train(
                network(),
                task.x,
                task.y,
                recipe,
                neighbours="replace",
                max_distance=reach,
                progress=False,
            )
            certificate, tested = model.certify(plane), model.predict(task.query_x)
            return {"accuracy": accuracy(tested, task.query_y)}, {
                "labels": certificate.labels,
                "distances": certificate.distances,
            }

        config = {
            "cell": "heat map",
            "task": task.digest,
            "recipe": recipe.as_dict(),
            "reach": reach,
            "side": side,
        }
        cell = run.store.cell(f"heat map, {name} blobs", config, certified)
        shape = (side, side)
        panels[name] = {
            **cell.figures,
            "labels": cell.tensors["labels"].view(shape).tolist(),
            "distances": cell.tensors["distances"].view(shape).tolist(),
        }
    return {
        "extent": EXTENT,
        "reach": reach,
        "epsilon": EPSILON,
        "relation": "replace",
        "panels": panels,
    }


def draw(results: Results) -> Any:
    figure, axes = grid(1, 2)
    ends = (-results["extent"], results["extent"])
    image = None
    for axis, (name, panel) in zip(axes[0], results["panels"].items(), strict=True):
        bound = np.exp(-results["epsilon"] / 6 * np.asarray(panel["distances"]))
        image = axis.imshow(
            bound,
            origin="lower",
            extent=(*ends, *ends),
            cmap="viridis_r",
            vmin=0,
            vmax=1,
            interpolation="nearest",
        )
        labels = np.asarray(panel["labels"])
        side = np.linspace(*ends, len(labels))
        axis.contour(side, side, labels, levels=[0.5], colors="red", linewidths=2)
        axis.plot([], [], color="red", label="decision boundary")
        axis.set(
            title=f"{name} blobs, accuracy {panel['accuracy']:.3f} (replace)",
            xlabel="$x_1$",
            ylabel="$x_2$",
        )
        axis.legend(loc="upper right", fontsize=8)
    bar = figure.colorbar(image, ax=list(axes[0]), shrink=0.9)
    bar.set_label(r"bound on smooth sensitivity, $e^{-\epsilon k/6}$, $\epsilon = 1$")
    return figure


def claims(results: Results) -> list[Claim]:
    shares = {}
    for name, panel in results["panels"].items():
        shares[name] = float(
            (np.exp(-results["epsilon"] / 6 * np.asarray(panel["distances"])) < np.exp(-2)).mean()
        )
    found = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return [
        Claim(
            "bounds are tighter where the data are separable",
            shares["far"] > shares["close"],
            f"share of the plane below e^-2: {found}",
        )
    ]


FIGURE = Figure(
    "heat-map",
    "Figure 1. Bounds on smooth sensitivity, blobs, epsilon = 1",
    compute,
    draw,
    claims,
    "Run as published (learning rate 2, not the text's 1); every k up to 200 is run, not a grid.",
)
