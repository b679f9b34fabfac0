"""Public pre-training for OctMNIST: a small convolutional network that saw no Drusen; its convolutions then stay as they are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.examples.task import Task

from .store import Store

_ROWS = 2000


def network(seed: int = 0) -> nn.Sequential:
    """Two convolutions and two dense layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(3200, 100), nn.ReLU(), nn.Linear(100, 1),
        )  # fmt: skip


def pretrained(store: Store, task: Task, epochs: int = 20) -> tuple[Task, nn.Module]:
    """The task with the frozen convolutions' outputs as features, and the pre-trained dense layers."""
    model = network()
    config = {"cell": "pretraining", "task": task.digest, "epochs": epochs}
    cell = store.cell("pre-training on public scans", config, lambda: ({}, _train(model, task, epochs).state_dict()))
    model.load_state_dict(cell.tensors)
    front, dense = model[:5], model[5:]
    return task.with_features(lambda images: _features(front, images)), dense


def _train(model: nn.Sequential, task: Task, epochs: int) -> nn.Sequential:
    """Adam on the public images, each class as often as the other."""
    assert task.public_y is not None
    lot = np.random.default_rng(0)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    by_class = [np.flatnonzero(task.public_y.numpy() == label) for label in (0, 1)]
    count = min(6000, len(by_class[1]))
    for _ in range(epochs):
        rows = lot.permutation(np.concatenate([lot.choice(by_class[0], count), lot.permutation(by_class[1])[:count]]))
        for batch in np.array_split(rows, max(1, len(rows) // 100)):
            optimiser.zero_grad()
            logits = model(task.public_x[batch])[:, 0]
            nn.functional.binary_cross_entropy_with_logits(logits, task.public_y[batch].float()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def _features(front: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([front(images[first : first + _ROWS]) for first in range(0, len(images), _ROWS)])
