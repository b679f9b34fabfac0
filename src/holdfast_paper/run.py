"""Run: where an experiment's data, cells and output are, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rich.console import Console

from holdfast.examples.blobs import blobs
from holdfast.examples.task import Task
from holdfast.records.folder import MissingData, data_folder

from .bench import Bench, blobs_bench, imdb_bench, octmnist_bench
from .data import imdb, octmnist
from .pretraining import pretrained
from .store import Store

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
        _ = self.folder  # one that is given and not there is a mistake: said before any work

    @cached_property
    def store(self) -> Store:
        return Store(self.out / "cells", self.console)

    @cached_property
    def folder(self) -> Path | None:
        return data_folder(self.data)

    def bench(self, name: str) -> Bench:
        """A task with its settings; raises MissingData, every time, where its data is not here."""
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
        elif name == "octmnist":
            task = octmnist(self.folder, self.fetch)
            bench = octmnist_bench(*pretrained(self.store, task.small(400, 100) if self.quick else task, 1 if self.quick else 20))
        else:
            bench = imdb_bench(_standardised(imdb(self.folder, self.embedder, self.out / "embeddings", self.fetch, self.console)))
        return bench.small() if self.quick else bench

    def benches(self) -> tuple[dict[str, Bench], dict[str, str]]:
        """Those whose data is here, and for the others the reason why they are not run."""
        here, missing = {}, {}
        for name in TASKS:
            try:
                here[name] = self.bench(name)
            except MissingData as reason:
                missing[name] = str(reason)
        return here, missing


def _standardised(task: Task) -> Task:
    """Every feature with the public records' mean 0 and spread 1."""
    middle, spread = task.public_x.mean(0), task.public_x.std(0)
    return task.with_features(lambda features: (features - middle) / spread.clamp(min=1e-6))
