"""Cells: results that figures share, stored so that a run can resume."""

from __future__ import annotations

import ast
import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

import holdfast
from holdfast.accounting import Budget
from holdfast.certificates import Certificate, certify_vote, paper_distance
from holdfast.errors import DamagedFile
from holdfast.examples.demo import Task
from holdfast.files import header_to_json, read, write
from holdfast.mechanisms import AnswerMechanism
from holdfast.planning import rehearse_dpsgd, train_dpsgd
from holdfast.planning.ways import predict
from holdfast.relations import Neighbours

from .bench import (
    LIMIT,
    Bench,
    DpSgdCandidate,
    Setting,
    preprocessing_of,
    start_model,
    train_members,
)

# Packages whose code decides what a cell holds; mechanisms and figures are applied to cells.
_DECIDING = (
    "arrays",
    "certificates",
    "examples",
    "heads",
    "intervals",
    "kernels",
    "layers",
    "models",
    "networks",
    "planning",
    "preprocessing",
    "records",
)


@cache
def code_digest(module: str) -> str:
    """Return a digest of the code that decides a cell which a function of `module` computes.

    Comments, docstrings and layout are left out: rewording them makes no cell invalid.
    """
    own = Path(__file__).parent
    paths = [*_room_files(*_DECIDING), own / "bench.py", own / "cells.py"]
    paths += [Path(file) for file in [sys.modules[module].__file__] if file is not None]
    return _code_digest(paths)


@cache
def mechanisms_digest() -> str:
    """Return a digest of the code of the mechanisms, for cells that hold their accuracies."""
    return _code_digest(_room_files("accounting", "mechanisms"))


def _room_files(*rooms: str) -> list[Path]:
    """Return the files of packages and modules of the library; each must exist."""
    library, files = Path(holdfast.__file__).parent, []
    for name in rooms:
        found = [*sorted((library / name).rglob("*.py")), *library.glob(f"{name}.py")]
        assert found, f"{name}: no such package or module of holdfast"
        files += found
    return files


def _code_digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.name}\n{code_text(path.read_text('utf-8'))}\n".encode())
    return found.hexdigest()[:24]


def code_text(source: str) -> str:
    """Return Python source as its syntax tree, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


@dataclass(frozen=True)
class Cell:
    """One cached result: plain numbers, and tensors."""

    figures: dict[str, Any]
    tensors: dict[str, Tensor]


Compute = Callable[[], tuple[Mapping[str, Any], Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    folder: Path
    console: Console

    def cell(self, title: str, config: Mapping[str, Any], compute: Compute) -> Cell:
        """Return the cell of a configuration, which is computed if it is not cached yet.

        `config` must contain all settings that decide the result. The code that decides it is part
        of the key too, so that a result of other code is never taken for one of this code.
        """
        full = {"torch": torch.__version__, "code": code_digest(compute.__module__), **config}
        path = (
            self.folder / f"{hashlib.sha256(header_to_json(full).encode()).hexdigest()[:24]}.cell"
        )
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            with self.console.status(title):
                figures, tensors = compute()
            seconds = time.monotonic() - started
            write(
                path,
                "cell",
                {"title": title, "config": full, "figures": dict(figures), "seconds": seconds},
                tensors,
            )
            self.console.print(f"[dim]{title}: {seconds:.1f} s[/dim]")
        try:
            header, found = read(path, "cell")
        except DamagedFile as error:
            raise DamagedFile(
                f"{error}; it is a cached result: delete the file to compute it again"
            ) from error
        return Cell(header["figures"], found)


Part = Literal["query", "points"]
STUDENT_POINTS = 100
"""How many public records, the first ones with labels, students learn from.

Neither teachers nor the choice of settings use the labels of these records.
"""


@dataclass(frozen=True)
class Evaluation:
    """The certificate of a part of a task, the right answers, and the paper's distances.

    For a single model, the paper's distances are those of the certificate.
    """

    certificate: Certificate
    right: Tensor
    paper: Certificate

    @property
    def accuracy(self) -> float:
        """The accuracy without noise."""
        return accuracy(self.certificate.labels, self.right)

    def with_paper_distance(self) -> Evaluation:
        """Return the same with the paper's ensemble distance, for comparison only.

        That distance jumps between neighbours, so nothing may be released from it.
        """
        return replace(self, certificate=self.paper)

    def expected(self, mechanism: AnswerMechanism) -> float:
        """Return the expected accuracy of a mechanism's answers, in closed form."""
        return float(mechanism.answer_probability(self.certificate, self.right).mean())


def certificates(
    store: Store,
    bench: Bench,
    setting: Setting,
    members: int = 1,
    seed: int = 0,
    part: Part = "query",
) -> Evaluation:
    """Return the certificates of a task's queries, or of the points for students.

    `part` selects "query" or "points". The model, or the ensemble if `members` is above 1, is
    trained with the setting.
    """
    task = bench.task
    config = {
        "cell": "certificates",
        "task": task.digest,
        "setting": setting.as_dict(),
        "members": members,
        "seed": seed,
    }
    config |= {"reach": setting.member_reach(members), "limit": LIMIT, "start": bench.public_start}

    def compute() -> tuple[dict[str, Any], dict[str, Tensor]]:
        both = torch.cat([task.query_x, task.tune_x[:STUDENT_POINTS]])
        trained = train_members(task, setting, members, seed, bench.pretrained).certify_members(
            both
        )
        found = certify_vote(trained)
        assert found.votes is not None
        paper = paper_distance(trained).distances if members > 1 else found.distances
        return {}, {
            "labels": found.labels,
            "distances": found.distances,
            "votes": found.votes,
            "paper": paper,
        }

    cell = store.cell(
        f"{task.name}, {setting.describe()}, members {members}, seed {seed}", config, compute
    ).tensors
    first = 0 if part == "query" else len(task.query_y)
    right = task.query_y if part == "query" else task.tune_y[:STUDENT_POINTS]
    rows = slice(first, first + len(right))
    found = {name: value[rows] for name, value in cell.items()}
    neighbours = Neighbours.of(setting.neighbours)
    certificate = Certificate(
        found["labels"], found["distances"], neighbours, 2, votes=found["votes"]
    )
    paper = replace(certificate, distances=found["paper"], nested=members == 1)
    return Evaluation(certificate, right, paper)


def seeds(bench: Bench, setting: Setting, members: int = 1) -> range:
    """Return one seed per repetition; only one if training does not depend on the seed."""
    fixed = members == 1 and (
        setting.start == "pretrained"
        or (setting.start == "paired" and setting.model == "linear-box")
    )
    return range(1 if fixed else bench.seeds)


@dataclass(frozen=True)
class DpSgdLabels:
    """The labels that one DP-SGD model gives to the queries and to the points for students."""

    query: Tensor
    points: Tensor


def dpsgd(
    store: Store, bench: Bench, rival: DpSgdCandidate, budget: Budget, seed: int
) -> DpSgdLabels:
    """Train a model with DP-SGD on the task's private records, and return its labels."""
    task = bench.task

    def compute() -> tuple[dict[str, Any], dict[str, Tensor]]:
        x, query_x, points = whitened(
            task, rival.shrinkage, task.x, task.query_x, task.tune_x[:STUDENT_POINTS]
        )
        trained, spent = train_dpsgd(
            dpsgd_start_model(bench, rival, seed), x, task.y, rival.settings, budget, seed
        )
        return {"epsilon": spent}, {
            "query": predict(trained, query_x),
            "points": predict(trained, points),
        }

    config = {"cell": "dpsgd", "task": task.digest, **dpsgd_config(bench, rival, budget, seed)}
    cell = store.cell(
        f"{task.name}, DP-SGD at {budget}, {rival.describe()}, seed {seed}", config, compute
    )
    return DpSgdLabels(cell.tensors["query"], cell.tensors["points"])


def dpsgd_config(bench: Bench, rival: DpSgdCandidate, budget: Budget, seed: int) -> dict[str, Any]:
    """Return everything that decides a DP-SGD model, except the records."""
    about = {
        "settings": rival.settings.as_dict(),
        "shrinkage": rival.shrinkage,
        "limit": LIMIT,
        "start": rival.start,
        "seed": seed,
    }
    network = {
        "model": bench.paper.model,
        "loss": bench.paper.recipe.loss,
        "public start": bench.public_start,
    }
    return {**about, **network, "epsilon": budget.epsilon, "delta": budget.delta}


def whitened(task: Task, shrinkage: float | None, *parts: Tensor) -> list[Tensor]:
    """Whiten features with the task's public records, unless `shrinkage` is None.

    `train_members` does the same by itself.
    """
    rules = preprocessing_of(task, shrinkage)
    return [part if rules is None else rules.apply(part).float() for part in parts]


def dpsgd_start_model(bench: Bench, rival: DpSgdCandidate, seed: int) -> nn.Module:
    """Return the untrained model of a DP-SGD candidate: the paper's network."""
    form = Setting(bench.paper.recipe, "add_remove", 1, bench.paper.model, rival.start)
    outputs = bench.paper.recipe.loss_function.outputs(2)
    return start_model(form, bench.task.x[0].numel(), outputs, seed, bench.pretrained)


def accuracy(labels: Tensor, right: Tensor) -> float:
    return float((labels == right).double().mean())


def dpsgd_accuracies(
    store: Store, bench: Bench, rival: DpSgdCandidate, budget: Budget, seeds: int = 5
) -> list[float]:
    """Return the accuracies on the queries, one per seed."""
    return [
        accuracy(dpsgd(store, bench, rival, budget, seed).query, bench.task.query_y)
        for seed in range(seeds)
    ]


def paper_dpsgd(bench: Bench) -> DpSgdCandidate:
    """Return the paper's own setting of DP-SGD, without whitening."""
    return DpSgdCandidate(bench.dpsgd, None, bench.paper.start)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, standard deviation and number of repetitions."""
    numbers = torch.tensor(values, dtype=torch.float64)
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std(unbiased=True)) if len(values) > 1 else 0.0,
        "n": len(values),
    }


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
