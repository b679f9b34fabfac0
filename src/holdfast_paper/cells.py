"""Cells: results that figures share, stored under their whole configuration so that a run can resume."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

from holdfast.accounting import Budget
from holdfast.certificates import Certificate, combine, paper_distance
from holdfast.errors import DamagedFile
from holdfast.examples.blobs import Task
from holdfast.files import as_text, read, write
from holdfast.mechanisms.mechanism import Mechanism
from holdfast.planning import train_dpsgd
from holdfast.planning.dpsgd import predict
from holdfast.relations import Neighbours
from holdfast.version import __version__

from .bench import LIMIT, Bench, Setting, Tuned, preprocessing_of, start_model, train_members


@dataclass(frozen=True)
class Cell:
    """One result: plain figures, and tensors."""

    figures: dict[str, Any]
    tensors: dict[str, Tensor]


Compute = Callable[[], tuple[Mapping[str, Any], Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    folder: Path
    console: Console

    def cell(self, title: str, config: Mapping[str, Any], compute: Compute) -> Cell:
        """The cell of a configuration, which must hold all that decides the result; computed if it is not there yet."""
        full = {"version": __version__, "torch": torch.__version__, **config}
        path = self.folder / f"{hashlib.sha256(as_text(full).encode()).hexdigest()[:24]}.cell"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            with self.console.status(title):
                figures, tensors = compute()
            seconds = time.monotonic() - started
            write(path, "cell", {"title": title, "config": full, "figures": dict(figures), "seconds": seconds}, tensors)
            self.console.print(f"[dim]{title}: {seconds:.1f} s[/dim]")
        try:
            header, found = read(path, "cell")
        except DamagedFile as error:
            raise DamagedFile(f"{error}; it holds a cached result: remove it, and the result is computed again") from error
        return Cell(header["figures"], found)


Part = Literal["query", "points"]
POINTS = 100
"""The first public records with labels: students learn from them. Their labels are used for nothing."""


@dataclass(frozen=True)
class Measured:
    """What is known of a part of a task: its certificate, the right answers, and, of an ensemble, the paper's distances."""

    certificate: Certificate
    right: Tensor
    paper: Certificate

    @property
    def accuracy(self) -> float:
        """Without noise."""
        return accuracy(self.certificate.labels, self.right)

    def with_papers_distance(self) -> Measured:
        """For comparison: the distance jumps between neighbours, so nothing could be released."""
        return replace(self, certificate=self.paper)

    def expected(self, mechanism: Mechanism) -> float:
        """The accuracy to expect of a mechanism's answers, in closed form."""
        return float(mechanism.answer_probability(self.certificate, self.right).mean())


def certificates(store: Store, bench: Bench, setting: Setting, members: int = 1, seed: int = 0, part: Part = "query") -> Measured:
    """Of a task's queries, or of the points for students ("points"), by a model or an ensemble trained as the setting says."""
    task = bench.task
    config = {"cell": "certificates", "task": task.digest, "setting": setting.as_dict(), "members": members, "seed": seed}
    config |= {"reach": setting.member_reach(members), "limit": LIMIT, "start": bench.public_start}

    def compute() -> tuple[dict[str, Any], dict[str, Tensor]]:
        both = torch.cat([task.query_x, task.tune_x[:POINTS]])
        trained = train_members(task, setting, members, seed, bench.pretrained).certify_members(both)
        found = combine(trained)
        assert found.votes is not None
        paper = paper_distance(trained).distances if members > 1 else found.distances
        return {}, {"labels": found.labels, "distances": found.distances, "votes": found.votes, "paper": paper}

    cell = store.cell(f"{task.name}, {setting.told()}, members {members}, seed {seed}", config, compute).tensors
    first = 0 if part == "query" else len(task.query_y)
    right = task.query_y if part == "query" else task.tune_y[:POINTS]
    rows = slice(first, first + len(right))
    found = {name: value[rows] for name, value in cell.items()}
    neighbours = Neighbours.of(setting.neighbours)
    certificate = Certificate(found["labels"], found["distances"], neighbours, 2, votes=found["votes"])
    paper = replace(certificate, distances=found["paper"], nested=members == 1)
    return Measured(certificate, right, paper)


def seeds(bench: Bench, setting: Setting, members: int = 1) -> range:
    """As many as there are repetitions; one where nothing is left to chance."""
    fixed = members == 1 and (setting.start == "pretrained" or (setting.start == "paired" and setting.model == "linear"))
    return range(1 if fixed else bench.seeds)


@dataclass(frozen=True)
class Trained:
    """One model by DP-SGD: its labels of the queries and of the points for students."""

    query: Tensor
    points: Tensor


def dpsgd(store: Store, bench: Bench, rival: Tuned, budget: Budget, seed: int) -> Trained:
    """A model by DP-SGD on the task's private records."""
    task = bench.task

    def compute() -> tuple[dict[str, Any], dict[str, Tensor]]:
        x, query_x, points = whitened(task, rival.shrinkage, task.x, task.query_x, task.tune_x[:POINTS])
        trained, spent = train_dpsgd(rival_start(bench, rival, seed), x, task.y, rival.settings, budget, seed)
        return {"epsilon": spent}, {"query": predict(trained, query_x), "points": predict(trained, points)}

    config = {"cell": "dpsgd", "task": task.digest, **rival_config(bench, rival, budget, seed)}
    cell = store.cell(f"{task.name}, DP-SGD at {budget}, {rival.told()}, seed {seed}", config, compute)
    return Trained(cell.tensors["query"], cell.tensors["points"])


def rival_config(bench: Bench, rival: Tuned, budget: Budget, seed: int) -> dict[str, Any]:
    """All that decides a model by DP-SGD, but for the records."""
    about = {"settings": rival.settings.as_dict(), "shrinkage": rival.shrinkage, "limit": LIMIT, "start": rival.start, "seed": seed}
    network = {"model": bench.paper.model, "loss": bench.paper.recipe.loss, "public start": bench.public_start}
    return {**about, **network, "epsilon": budget.epsilon, "delta": budget.delta}


def whitened(task: Task, shrinkage: float | None, *parts: Tensor) -> list[Tensor]:
    """Features by the task's public records' whitening, if any: what `train_members` does by itself."""
    rules = preprocessing_of(task, shrinkage)
    return [part if rules is None else rules.apply(part).float() for part in parts]


def rival_start(bench: Bench, rival: Tuned, seed: int) -> nn.Module:
    """The untrained model of a candidate of DP-SGD: the paper's network."""
    form = Setting(bench.paper.recipe, "add_remove", 1, bench.paper.model, rival.start)
    outputs = 1 if bench.paper.recipe.loss == "binary_cross_entropy" else 2
    return start_model(form, bench.task.x[0].numel(), outputs, seed, bench.pretrained)


def accuracy(labels: Tensor, right: Tensor) -> float:
    return float((labels == right).double().mean())


def dpsgd_accuracies(store: Store, bench: Bench, rival: Tuned, budget: Budget, seeds: int = 5) -> list[float]:
    """On the queries, one a seed."""
    return [accuracy(dpsgd(store, bench, rival, budget, seed).query, bench.task.query_y) for seed in range(seeds)]


def paper_dpsgd(bench: Bench) -> Tuned:
    """The paper's own DP-SGD, on features as they are."""
    return Tuned(bench.dpsgd, None, bench.paper.start)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation and number of repetitions."""
    numbers = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(numbers.mean()), "std": float(numbers.std(unbiased=True)) if len(values) > 1 else 0.0, "n": len(values)}
