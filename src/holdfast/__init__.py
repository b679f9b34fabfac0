"""holdfast: predictions that hold fast when people come and go.

The road of the data is the shape of the package; each arrow is one frozen type:

    Records -> ParameterBounds (one per distance k) -> Certificate (label, distance)

`train` bounds every model that training could have produced had up to k records been added, removed or exchanged;
`Certified.certify` says of each query how far its label is stable. Certificates are not private by themselves.
"""

from .certificates import Certificate
from .certified import Certified, train
from .errors import DamagedFile, HoldfastError, HoldfastWarning, InvalidInput, Overflow, UnsoundBounds, UnsupportedModel
from .neighbours import Neighbours
from .saved import load
from .training import Diagnosis, ParameterBounds, Recipe
from .version import __version__

__all__ = [
    "Certificate",
    "Certified",
    "DamagedFile",
    "Diagnosis",
    "HoldfastError",
    "HoldfastWarning",
    "InvalidInput",
    "Neighbours",
    "Overflow",
    "ParameterBounds",
    "Recipe",
    "UnsoundBounds",
    "UnsupportedModel",
    "__version__",
    "load",
    "train",
]
