"""Linear heads on public features: training, certificates in closed form, and releases."""

from .ball import Ball
from .certified import CertifiedHead
from .recipe import LinearRecipe
from .release import release_head
from .released import ReleasedHead
from .training import estimate_linear_training, train_linear

__all__ = [
    "Ball",
    "CertifiedHead",
    "LinearRecipe",
    "ReleasedHead",
    "estimate_linear_training",
    "release_head",
    "train_linear",
]
