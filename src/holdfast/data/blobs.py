"""The paper's synthetic data: two Gaussian clouds, with cubic features so that the boundary may bend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_SETTINGS = {"far": (1.25, 0.35), "close": (1.0, 0.75)}  # half the distance of the centres, standard deviation


@dataclass(frozen=True, eq=False)
class Blobs:
    """A fixed split; `points` are the places in the plane that the features belong to."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    points: Tensor


def blobs(name: str = "close", records: int = 3750) -> Blobs:
    """ "far" or "close": `records` points drawn with seed 0, four fifths of them for training."""
    from sklearn.datasets import make_blobs
    from sklearn.model_selection import train_test_split

    centre, spread = _SETTINGS[name]
    centres = [[centre, centre], [-centre, -centre]]
    points, labels = make_blobs(records, centers=centres, cluster_std=[spread, spread], random_state=0)
    points, test_points, labels, test_labels = train_test_split(points, labels, test_size=0.2, random_state=0)
    return Blobs(
        x=features(torch.from_numpy(points)),
        y=torch.from_numpy(labels.astype(np.int64)),
        test_x=features(torch.from_numpy(test_points)),
        test_y=torch.from_numpy(test_labels.astype(np.int64)),
        points=torch.from_numpy(points),
    )


def features(points: Tensor) -> Tensor:
    """(x, x^2, x^3) of points in the plane, in float32."""
    return torch.cat([points, points**2, points**3], dim=1).float()
