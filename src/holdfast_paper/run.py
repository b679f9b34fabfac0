"""Run: the data, cells and output of one call of `holdfast reproduce`; public pre-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from holdfast.examples.demo import Task, blobs
from holdfast.examples.tables import MissingData, data_folder

from .bench import Bench, blobs_bench, imdb_bench, octmnist_bench
from .cells import Store
from .scans_and_reviews import imdb, octmnist, octmnist_by_patient

_ROWS = 2000


def network(seed: int = 0) -> nn.Sequential:
    """Return a network of two convolutions and two dense layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(3200, 100), nn.ReLU(), nn.Linear(100, 1),
        )  # fmt: skip


def pretrained(store: Store, task: Task, epochs: int = 20) -> tuple[Task, nn.Module]:
    """Return the task on the frozen convolutions' outputs, and the pre-trained dense layers."""
    model = network()
    config = {"cell": "pretraining", "task": task.digest, "epochs": epochs}
    cell = store.cell(
        "pre-training on public scans",
        config,
        lambda: ({}, _train(model, task, epochs).state_dict()),
    )
    model.load_state_dict(cell.tensors)
    front, dense = model[:5], model[5:]
    return task.with_features(lambda images: _features(front, images)), dense


def _train(model: nn.Sequential, task: Task, epochs: int) -> nn.Sequential:
    """Train with Adam on the public images, with both classes equally often."""
    assert task.public_y is not None
    generator = np.random.default_rng(0)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    by_class = [np.flatnonzero(task.public_y.numpy() == label) for label in (0, 1)]
    count = min(6000, len(by_class[1]))
    for _ in range(epochs):
        rows = generator.permutation(
            np.concatenate(
                [generator.choice(by_class[0], count), generator.permutation(by_class[1])[:count]]
            )
        )
        for batch in np.array_split(rows, max(1, len(rows) // 100)):
            optimiser.zero_grad()
            logits = model(task.public_x[batch])[:, 0]
            nn.functional.binary_cross_entropy_with_logits(
                logits, task.public_y[batch].float()
            ).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def _features(front: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat(
            [front(images[first : first + _ROWS]) for first in range(0, len(images), _ROWS)]
        )


TASKS = ("blobs", "octmnist", "imdb")


@dataclass(frozen=True, eq=False)
class Run:
    """One call of `holdfast reproduce`."""

    out: Path
    console: Console
    data: Path | None = None
    quick: bool = False
    fetch: bool = False
    embedder: str | None = None
    _benches: dict[str, Bench | MissingData] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.folder  # raises before any work if the given folder does not exist

    @cached_property
    def store(self) -> Store:
        return Store(self.out / "cells", self.console)

    @cached_property
    def folder(self) -> Path | None:
        return data_folder(self.data)

    def bench(self, name: str) -> Bench:
        """Return a task with its settings; raise MissingData, every time, if data is missing."""
        if name not in self._benches:
            try:
                self._benches[name] = self._bench(name)
            except MissingData as missing:
                self._benches[name] = missing
        found = self._benches[name]
        if isinstance(found, MissingData):
            raise found
        return found

    def _bench(self, name: str) -> Bench:
        if name == "blobs":
            bench = blobs_bench(blobs("far", 6250))
        elif name in ("octmnist", "octmnist-patients"):
            load = octmnist if name == "octmnist" else octmnist_by_patient
            task = load(self.folder, self.fetch)
            bench = octmnist_bench(
                *pretrained(
                    self.store,
                    task.subsample(400, 100) if self.quick else task,
                    1 if self.quick else 20,
                )
            )
        else:
            bench = imdb_bench(
                _standardised(
                    imdb(
                        self.folder,
                        self.embedder,
                        self.out / "embeddings",
                        self.fetch,
                        self.console,
                    )
                )
            )
        return bench.subsample() if self.quick else bench

    def benches(self) -> tuple[dict[str, Bench], dict[str, str]]:
        """Return the benches whose data is available, and why the others are not run."""
        here, missing = {}, {}
        for name in TASKS:
            try:
                here[name] = self.bench(name)
            except MissingData as reason:
                missing[name] = str(reason)
        return here, missing


def _standardised(task: Task) -> Task:
    """Scale each feature to mean 0 and standard deviation 1 on the public records."""
    middle, deviation = task.public_x.mean(0), task.public_x.std(0)
    return task.with_features(lambda features: (features - middle) / deviation.clamp(min=1e-6))
