"""Privacy per patient on OctMNIST, where most patients have several scans; not in the paper."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

from holdfast.accounting import Budget
from holdfast.errors import HoldfastWarning
from holdfast.heads.certified import CertifiedHead
from holdfast.heads.recipe import LinearRecipe, noise_per_sensitivity
from holdfast.heads.training import train_linear
from holdfast.mechanisms import BudgetedResponse
from holdfast.planning.ways import public_labels_accuracy, released_accuracy

from .bench import Bench
from .cells import Evaluation, mechanisms_digest
from .figure import Claim, Figure, Results, accuracy_scale, grid
from .heads import SHRINKAGE, private_stage, whitened_encoder
from .run import Run

DELTA = 1e-5
EPSILONS = (10.0, 1.0)
_QUERIES = (1, 10, 100, 1000, 10_000)
PATIENT, SCAN = "per patient", "per scan"
# About how many patients and scans there are: public numbers, known before anyone looks.
COUNTS = {PATIENT: 1_300, SCAN: 12_000}


def compute(run: Run) -> Results:
    bench = run.bench("octmnist-patients")
    queries = (1, 100) if run.quick else _QUERIES
    persons = bench.task.persons
    assert persons is not None
    each = np.unique(persons.numpy(), return_counts=True)[1]
    panels = {
        str(epsilon): {
            unit: _panel(run, bench, Budget(epsilon, DELTA), unit, queries) for unit in COUNTS
        }
        for epsilon in EPSILONS
    }
    return {
        "panels": panels,
        "queries": queries,
        "public labels alone": public_labels_accuracy(private_stage(bench)),
        "patients": len(each),
        "scans": int(each.sum()),
        "scans per patient": {
            "mean": float(each.mean()),
            "median": float(np.median(each)),
            "largest": int(each.max()),
            "sorted": sorted(each.tolist()),
        },
        "source": bench.task.source,
    }


def _panel(
    run: Run, bench: Bench, budget: Budget, unit: str, queries: tuple[int, ...]
) -> dict[str, Any]:
    config = {
        "cell": "patients",
        "task": bench.task.digest,
        "start": bench.public_start,
        "unit": unit,
        "budget": [budget.epsilon, budget.delta],
        "queries": list(queries),
        "mechanisms": mechanisms_digest(),
    }

    def measure() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)  # the figure shows hopeless budgets
            answers = [_answers(bench, budget, unit, count) for count in queries]
            return {"answers": answers, "release": _release(bench, budget, unit)}, {}

    title = f"{bench.task.name}, heads {unit}, {budget}"
    return dict(run.store.cell(title, config, measure).figures)


def _answers(bench: Bench, budget: Budget, unit: str, queries: int) -> dict[str, Any]:
    """Return what answers one by one reach."""
    recipe = LinearRecipe.for_budget(
        records=COUNTS[unit], features=_width(bench), classes=2, budget=budget, queries=queries
    )
    found = _head(bench, recipe, unit).certify(bench.task.query_x)
    judged = Evaluation(found, bench.task.query_y, found)
    return {
        "accuracy": judged.expected(BudgetedResponse(budget, queries)),
        "noise-free": judged.accuracy,
        "median distance": int(found.distances.median()),
    }


def _release(bench: Bench, budget: Budget, unit: str) -> dict[str, float]:
    """Return what a released head reaches, for any number of queries.

    Also with a public threshold: answer "abnormal" as often as it is known to occur among the
    queries. Half of them, without labels, serve for that, and the others are judged.
    """
    recipe = LinearRecipe.for_release(
        records=COUNTS[unit], features=_width(bench), classes=2, budget=budget
    )
    head = _head(bench, recipe, unit)
    noise = noise_per_sensitivity(budget) * head.ball.sensitivity
    features, norms, offsets = head.inputs(head.features(bench.task.query_x), head.scheme)
    scores = features @ head.weights.numpy()[0] + offsets[:, 0]
    right = bench.task.query_y.numpy()
    share = float(right.mean())
    margins = (scores - np.quantile(scores[::2], 1.0 - share)) * (2 * right - 1)
    return {
        "accuracy": released_accuracy(head, noise, bench.task.query_x, right),
        "with a public threshold": float(ndtr(margins / (noise * norms))[1::2].mean()),
    }


def _head(bench: Bench, recipe: LinearRecipe, unit: str) -> CertifiedHead:
    task = bench.task
    encoder, scale = whitened_encoder(bench, task.public_x, SHRINKAGE)
    owners = {"persons" if unit == PATIENT else "ids": _owners(bench, unit)}
    head = train_linear(
        task.x,
        task.y,
        replace(recipe, scale=scale),
        classes=2,
        encoder=encoder,
        offset=bench.pretrained,
        progress=False,
        **owners,
    )
    assert isinstance(head, CertifiedHead)
    return head


def _owners(bench: Bench, unit: str) -> Any:
    assert bench.task.persons is not None
    return bench.task.persons.tolist() if unit == PATIENT else range(len(bench.task.y))


def _width(bench: Bench) -> int:
    encoder, _ = whitened_encoder(bench, bench.task.public_x, SHRINKAGE)
    last = encoder[-1]
    assert isinstance(last, torch.nn.Linear)
    return last.out_features


def draw(results: Results) -> Any:
    figure, axes = grid(1, 3, 3.6)
    for axis, (epsilon, panel) in zip(axes[0], results["panels"].items(), strict=False):
        for unit, style, colour in ((SCAN, "s--", "C7"), (PATIENT, "o-", "C0")):
            values = [each["accuracy"] for each in panel[unit]["answers"]]
            axis.plot(results["queries"], values, style, color=colour, label=f"answers {unit}")
            release = {"color": colour, "lw": 1.2, "ls": "-." if unit == SCAN else "-"}
            axis.axhline(panel[unit]["release"]["accuracy"], label=f"release {unit}", **release)
        public = results["public labels alone"]
        axis.axhline(public, color="black", lw=1, ls=":", label="public labels alone")
        axis.set(xscale="log", xlabel="queries Q", ylabel="expected accuracy")
        axis.set(title=f"({float(epsilon):g}, 1e-5)")
        axis.grid(alpha=0.3)
        accuracy_scale(axis)
    axes[0][0].legend(frameon=False, fontsize=7, loc="lower left")
    each = results["scans per patient"]["sorted"]
    axes[0][2].hist(each, bins=np.geomspace(1, max(each) + 1, 16), color="C0")
    axes[0][2].set(xscale="log", xlabel="scans of a patient", ylabel="patients")
    axes[0][2].set(title=f"{results['patients']:,} patients, {results['scans']:,} scans")
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for epsilon, panel in results["panels"].items():
        pairs = [
            (count, patient["accuracy"], scan["accuracy"])
            for count, patient, scan in zip(
                results["queries"], panel[PATIENT]["answers"], panel[SCAN]["answers"], strict=True
            )
        ]
        text = ", ".join(
            f"Q = {count:,}: {patient:.3f} against {scan:.3f}" for count, patient, scan in pairs
        )
        listed.append(
            Claim(
                f"OctMNIST, ({float(epsilon):g}, 1e-5): one answer per patient costs at most .02 "
                "against one per scan",
                pairs[0][1] >= pairs[0][2] - 0.02,
                f"{text}; release {_releases(panel, 'accuracy')}, with a public threshold "
                f"{_releases(panel, 'with a public threshold')}; {results['patients']:,} patients",
            )
        )
    return listed


def _releases(panel: Results, name: str) -> str:
    patient, scan = (panel[unit]["release"][name] for unit in (PATIENT, SCAN))
    return f"{patient:.3f} against {scan:.3f}"


FIGURE = Figure(
    "patients",
    "Privacy per patient on OctMNIST, beside privacy per scan (not in the paper)",
    compute,
    draw,
    claims,
    "No patient is both private and public, so the split differs from the other figures. Heads "
    "with settings from public numbers alone. DP-SGD is not drawn: Opacus protects scans, not "
    "patients.",
)
