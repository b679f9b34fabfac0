"""The paper's synthetic data: two Gaussian clouds, with cubic features so that the boundary may bend."""

from __future__ import annotations

import torch
from torch import Tensor

from .task import Task, labels

_SETTINGS = {"far": (1.25, 0.35), "close": (1.0, 0.75)}  # half the distance of the centres, standard deviation


def blobs(name: str = "close", records: int = 3750) -> Task:
    """ "far" or "close": `records` points drawn with seed 0, four fifths of them private; as many again, drawn with seed 1, are public."""
    from sklearn.model_selection import train_test_split

    x, y = _draw(name, records, seed=0)
    x, query_x, y, query_y = train_test_split(x, y, test_size=0.2, random_state=0)
    public_x, tune_x, _, tune_y = train_test_split(*_draw(name, records, seed=1), test_size=0.2, random_state=0)
    parts = [features(torch.from_numpy(part)) for part in (x, query_x, public_x, tune_x)]
    return Task(
        name=f"blobs-{name}",
        source=f"{name} blobs: two Gaussian clouds",
        x=parts[0],
        y=labels(y),
        query_x=parts[1],
        query_y=labels(query_y),
        public_x=parts[2],
        tune_x=parts[3],
        tune_y=labels(tune_y),
    )


def _draw(name: str, records: int, seed: int) -> tuple[object, object]:
    from sklearn.datasets import make_blobs

    centre, spread = _SETTINGS[name]
    centres = [[centre, centre], [-centre, -centre]]
    drawn: tuple[object, object] = make_blobs(records, centers=centres, cluster_std=[spread, spread], random_state=seed)
    return drawn


def features(points: Tensor) -> Tensor:
    """(x, x^2, x^3) of points in the plane, in float32."""
    return torch.cat([points, points**2, points**3], dim=1).float()
