"""Models: what training returns, alone or as an ensemble, and the files that they are saved in."""

from .certified import Certified
from .ensemble import CertifiedEnsemble
from .fitting import estimate_training, train, train_ensemble
from .interface import CertifiedModel
from .linear import CertifiedHead
from .linear_fitting import estimate_linear_training, train_linear
from .loading import load
from .released import ReleasedHead

__all__ = [
    "Certified",
    "CertifiedEnsemble",
    "CertifiedHead",
    "CertifiedModel",
    "ReleasedHead",
    "estimate_linear_training",
    "estimate_training",
    "load",
    "train",
    "train_ensemble",
    "train_linear",
]
