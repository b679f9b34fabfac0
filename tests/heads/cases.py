"""Small random tasks for linear heads, and ways to move from one data set to its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast as hf
from holdfast.heads.certified import CertifiedHead

Record = tuple[tuple[float, ...], int]  # features and label


@dataclass(frozen=True)
class Records:
    """Records by owner; one move adds, removes or exchanges one owner with all records."""

    content: dict[int, list[Record]] = field(default_factory=dict)

    def moved(self, task: Task, chance: np.random.Generator) -> Records:
        """Return a data set that is one move away."""
        content = dict(self.content)
        ids = list(content)
        if task.neighbours == "replace":
            content[ids[chance.integers(len(ids))]] = task.owned(chance)
        elif len(ids) > 1 and chance.random() < 0.5:
            del content[ids[chance.integers(len(ids))]]
        else:
            content[int(chance.integers(10**6, 10**9))] = task.owned(chance)
        return Records(content)


@dataclass(frozen=True)
class Task:
    """How heads are trained in one family of tests."""

    recipe: hf.LinearRecipe
    classes: int = 2
    neighbours: str = "add_remove"
    multiclass: str = "pairs"
    width: int = 3
    ties: bool = False  # whether all records have the same features, so that gradients tie
    offset: bool = False
    most: int = 1  # the largest number of records per owner; above 1, owners are persons
    kept: int | None = None  # max_records_per_person

    def owned(self, chance: np.random.Generator) -> list[Record]:
        """Return the records of a new owner; some owners have copies of one record."""
        count = int(chance.integers(1, self.most + 1))
        if chance.random() < 0.2:
            return [self.record(chance)] * count
        return [self.record(chance) for _ in range(count)]

    def record(self, chance: np.random.Generator) -> Record:
        label = int(chance.integers(self.classes))
        if self.ties:
            x = (1.0,) * self.width
        else:
            middle = np.zeros(self.width)
            middle[label % self.width] = 1.5 * chance.random()
            x = tuple(float(v) for v in chance.normal(size=self.width) + middle)
        return x, label

    def records(self, count: int, chance: np.random.Generator) -> Records:
        return Records({number: self.owned(chance) for number in range(count)})

    def train(self, records: Records, chance: np.random.Generator, **changes: Any) -> CertifiedHead:
        """Train on the records in a random order."""
        rows = [(owner, record) for owner, own in records.content.items() for record in own]
        rows = [rows[row] for row in chance.permutation(len(rows))]
        owners, pairs = [owner for owner, _ in rows], [record for _, record in rows]
        task = replace(self, **changes) if changes else self
        head = hf.train_linear(
            torch.tensor([x for x, _ in pairs], dtype=torch.float64),
            torch.tensor([label for _, label in pairs]),
            task.recipe,
            classes=task.classes,
            neighbours=task.neighbours,
            multiclass=task.multiclass,
            offset=task.offset_module() if task.offset else None,
            ids=owners if task.most == 1 else None,
            persons=None if task.most == 1 else owners,
            max_records_per_person=task.kept,
            progress=False,
        )
        assert isinstance(head, CertifiedHead)
        return head

    def offset_module(self) -> nn.Module:
        """Return a fixed public model."""
        module = nn.Linear(self.width, self.classes if self.classes > 2 else 1)
        with torch.no_grad():
            numbers = torch.arange(module.weight.numel(), dtype=torch.float32)
            module.weight.copy_(torch.sin(numbers).view_as(module.weight))
            module.bias.zero_()
        return module

    def queries(self, count: int, chance: np.random.Generator) -> torch.Tensor:
        return torch.tensor([self.record(chance)[0] for _ in range(count)], dtype=torch.float64)


def violations(task: Task, records: Records, moves: int, chance: np.random.Generator) -> list[str]:
    """Return every claim that is false along a chain of moves away from the records."""
    first = task.train(records, chance)
    queries = task.queries(6, chance)
    start = first.certify(queries)
    before, found = start, []
    for k in range(1, moves + 1):
        records = records.moved(task, chance)
        head = task.train(records, chance)
        moved = (head.weights - first.weights).norm(dim=1)
        apart = moved.norm() if task.multiclass == "softmax" and task.classes > 2 else moved.max()
        if not float(apart) <= first.radius(k):
            found.append(f"weights moved {float(apart)} > {first.radius(k)} in {k} moves")
        now = head.certify(queries)
        if ((start.distances >= k) & (start.labels != now.labels)).any():
            found.append(f"a label changed within its distance, after {k} moves")
        if ((now.distances - before.distances).abs() > 1).any():
            found.append(f"P1: {before.distances.tolist()} and {now.distances.tolist()}")
        one = (now.distances >= 1) | (before.distances >= 1)
        if (one & (now.labels != before.labels)).any():
            found.append("P2: labels of neighbours differ at a distance of 1 or more")
        before = now
    return found
