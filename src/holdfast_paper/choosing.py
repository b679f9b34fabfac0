"""Choosing settings without looking at a private record: candidates are tried out on public records that have labels.

A model of fewer records is certified less far, and by DP-SGD it would drown in noise; both go by the number of records, so a
rehearsal is scaled to the private number, which is public: distances are multiplied, noise is divided.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from holdfast.accounting import Budget
from holdfast.examples.blobs import Task
from holdfast.mechanisms.mechanism import Mechanism
from holdfast.planning import rehearse_dpsgd
from holdfast.planning.dpsgd import predict

from .bench import Bench, Setting, Tuned
from .cells import POINTS, Store, accuracy, certificates, rival_config, rival_start, whitened

FOLDS = 3


def rehearsal(task: Task, fold: int) -> Task:
    """Public records in the place of private ones: one fold of them as queries; of the others as many of each class to train on."""
    rows = torch.arange(POINTS, len(task.tune_y))
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


def choose(store: Store, bench: Bench, mechanism: Mechanism) -> Setting:
    """The candidate whose answers by the mechanism are best in rehearsal; the first of equals."""
    scores = [sum(_score(store, bench, setting, mechanism, fold) for fold in range(FOLDS)) for setting in bench.ours]
    return bench.ours[scores.index(max(scores))]


def _score(store: Store, bench: Bench, setting: Setting, mechanism: Mechanism, fold: int) -> float:
    stage = replace(bench, task=rehearsal(bench.task, fold))
    times = bench.records / len(stage.task.y)
    recipe = replace(setting.recipe, batch_size=len(stage.task.y))
    found = certificates(store, stage, replace(setting, recipe=recipe, reach=math.ceil(setting.reach / times)))
    farther = (found.certificate.distances.double() * times).long().clamp(max=setting.reach)
    return replace(found, certificate=replace(found.certificate, distances=farther)).expected(mechanism)


def choose_dpsgd(store: Store, bench: Bench, budget: Budget) -> Tuned:
    """The candidate of DP-SGD that is most accurate in rehearsal; the first of equals."""
    scores = [sum(_rehearsed(store, bench, rival, budget, fold) for fold in range(FOLDS)) for rival in bench.dpsgd_tuned]
    return bench.dpsgd_tuned[scores.index(max(scores))]


def _rehearsed(store: Store, bench: Bench, rival: Tuned, budget: Budget, fold: int) -> float:
    stage, seed = rehearsal(bench.task, fold), 100 + fold

    def compute() -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        x, query_x = whitened(stage, rival.shrinkage, stage.x, stage.query_x)
        model = rehearse_dpsgd(rival_start(bench, rival, seed), x, stage.y, rival.settings, budget, seed, bench.records)
        labels = predict(model, query_x)
        return {"accuracy": accuracy(labels, stage.query_y)}, {"labels": labels}

    config = {"cell": "rehearsed dpsgd", "task": stage.digest, "records": bench.records, **rival_config(bench, rival, budget, seed)}
    title = f"{stage.name}, DP-SGD rehearsed for {budget}, {rival.told()}, fold {fold}"
    return float(store.cell(title, config, compute).figures["accuracy"])
