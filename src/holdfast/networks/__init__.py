"""Networks: training with a box of parameters for every distance, and their certificates."""

from .boxes import ParameterBounds
from .certified import Certified
from .diagnosis import Diagnosis
from .recipe import Recipe
from .training import estimate_training, train, train_ensemble

__all__ = [
    "Certified",
    "Diagnosis",
    "ParameterBounds",
    "Recipe",
    "estimate_training",
    "train",
    "train_ensemble",
]
