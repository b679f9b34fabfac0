"""Choice of settings without private records: candidates are tried on public records with labels.

With fewer records, a model is certified only at smaller distances, and DP-SGD has too much noise.
Both effects depend on the number of records. A rehearsal is therefore scaled to the number of
private records, which is public: distances are multiplied and noise is divided.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from holdfast.accounting import Budget
from holdfast.examples.demo import Task
from holdfast.mechanisms import AnswerMechanism
from holdfast.planning import rehearse_dpsgd
from holdfast.planning.dpsgd import predict

from .bench import Bench, DpSgdCandidate, Setting
from .cells import (
    STUDENT_POINTS,
    Store,
    accuracy,
    certificates,
    dpsgd_config,
    dpsgd_start_model,
    whitened,
)

FOLDS = 3


def rehearsal(task: Task, fold: int) -> Task:
    """Return the task with public records in place of the private ones.

    One fold of them becomes the queries; the others are for training, equally many per class.
    """
    rows = torch.arange(STUDENT_POINTS, len(task.tune_y))
    rest, others = rows[rows % FOLDS == fold], rows[rows % FOLDS != fold]
    by_class = [others[task.tune_y[others] == label] for label in (0, 1)]
    train = torch.cat([part[: min(map(len, by_class))] for part in by_class])
    return replace(
        task,
        source=f"{task.source}; public records as rehearsal",
        x=task.tune_x[train],
        y=task.tune_y[train],
        query_x=task.tune_x[rest],
        query_y=task.tune_y[rest],
        query_groups=None,
    )


def choose(store: Store, bench: Bench, mechanism: AnswerMechanism) -> Setting:
    """Return the first candidate whose answers by the mechanism are best in rehearsal."""
    scores = [
        sum(_score(store, bench, setting, mechanism, fold) for fold in range(FOLDS))
        for setting in bench.ours
    ]
    return bench.ours[scores.index(max(scores))]


def _score(
    store: Store, bench: Bench, setting: Setting, mechanism: AnswerMechanism, fold: int
) -> float:
    stage = replace(bench, task=rehearsal(bench.task, fold))
    times = bench.records / len(stage.task.y)
    recipe = replace(setting.recipe, batch_size=len(stage.task.y))
    found = certificates(
        store, stage, replace(setting, recipe=recipe, reach=math.ceil(setting.reach / times))
    )
    farther = (found.certificate.distances.double() * times).long().clamp(max=setting.reach)
    return replace(found, certificate=replace(found.certificate, distances=farther)).expected(
        mechanism
    )


def choose_dpsgd(store: Store, bench: Bench, budget: Budget) -> DpSgdCandidate:
    """Return the first candidate of DP-SGD that is most accurate in rehearsal."""
    scores = [
        sum(_dpsgd_score(store, bench, rival, budget, fold) for fold in range(FOLDS))
        for rival in bench.dpsgd_tuned
    ]
    return bench.dpsgd_tuned[scores.index(max(scores))]


def _dpsgd_score(
    store: Store, bench: Bench, rival: DpSgdCandidate, budget: Budget, fold: int
) -> float:
    stage, seed = rehearsal(bench.task, fold), 100 + fold

    def compute() -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        x, query_x = whitened(stage, rival.shrinkage, stage.x, stage.query_x)
        model = rehearse_dpsgd(
            dpsgd_start_model(bench, rival, seed),
            x,
            stage.y,
            rival.settings,
            budget,
            seed,
            bench.records,
        )
        labels = predict(model, query_x)
        return {"accuracy": accuracy(labels, stage.query_y)}, {"labels": labels}

    config = {
        "cell": "rehearsed dpsgd",
        "task": stage.digest,
        "records": bench.records,
        **dpsgd_config(bench, rival, budget, seed),
    }
    title = f"{stage.name}, DP-SGD rehearsed for {budget}, {rival.describe()}, fold {fold}"
    return float(store.cell(title, config, compute).figures["accuracy"])
