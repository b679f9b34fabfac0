"""holdfast: predictions that hold fast when people come and go.

The subpackages follow the flow of the data, from one frozen type to the next:

    Records -> ParameterBounds (one per distance k) -> Certificate (label, distance)
            -> Mechanism -> charge (Ledger) -> Answer

`train` bounds every model that training could have produced if up to k records had been added,
removed or exchanged; `Certified.certify` returns, per query, the distance up to which its label is
stable. Certificates are not private by themselves: a mechanism turns them into labels that are, at
a stated cost per answer. `PrivatePredictor` charges that cost to a budget in a durable `Ledger`
before it returns the answer. For many queries, `release_head` adds noise to a linear head once and
returns an ordinary model.

The names that most programs need are here. The others are in the submodules: `hf.mechanisms` (the
paper's mechanisms, entropy for tests), `hf.accounting` (guarantees), `hf.errors`,
`hf.preprocessing`, and one submodule per stage above. Submodules are imported when they are first
used.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import accounting as accounting
    from . import certificates as certificates
    from . import checks as checks
    from . import errors as errors
    from . import examples as examples
    from . import heads as heads
    from . import kernels as kernels
    from . import layers as layers
    from . import ledger as ledger
    from . import mechanisms as mechanisms
    from . import models as models
    from . import networks as networks
    from . import planning as planning
    from . import preprocessing as preprocessing
    from . import records as records
    from . import service as service
    from . import serving as serving
    from .accounting import Budget, per_query_epsilon, total_epsilon
    from .certificates import Certificate
    from .client import Client
    from .errors import BudgetExhausted, HoldfastError
    from .heads import LinearRecipe, ReleasedHead, release_head, train_linear
    from .layers import zero_output
    from .ledger import Ledger
    from .loading import load
    from .mechanisms import BudgetedResponse, SparseVector, StableResponse
    from .networks import Certified, Recipe, train, train_ensemble
    from .planning import plan, simulate
    from .preprocessing import Preprocessing
    from .records import Dataset
    from .relations import Neighbours
    from .serving import Answer, PrivatePredictor
    from .serving.estimator import HoldfastClassifier

_MODULES = {  # the module of each public name; it is imported when one of its names is first used
    "accounting": ("Budget", "per_query_epsilon", "total_epsilon"),
    "certificates": ("Certificate",),
    "client": ("Client",),
    "errors": ("BudgetExhausted", "HoldfastError"),
    "heads": ("LinearRecipe", "ReleasedHead", "release_head", "train_linear"),
    "layers": ("zero_output",),
    "ledger": ("Ledger",),
    "mechanisms": ("BudgetedResponse", "SparseVector", "StableResponse"),
    "loading": ("load",),
    "networks": ("Certified", "Recipe", "train", "train_ensemble"),
    "planning": ("plan", "simulate"),
    "preprocessing": ("Preprocessing",),
    "records": ("Dataset",),
    "relations": ("Neighbours",),
    "serving": ("Answer", "PrivatePredictor"),
    "serving.estimator": ("HoldfastClassifier",),
}
_SUBMODULES = (
    "accounting",
    "certificates",
    "checks",
    "errors",
    "examples",
    "heads",
    "kernels",
    "layers",
    "ledger",
    "mechanisms",
    "models",
    "networks",
    "planning",
    "preprocessing",
    "records",
    "service",
    "serving",
)
logging.getLogger(__name__).addHandler(logging.NullHandler())
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


__all__ = [
    "Answer",
    "Budget",
    "BudgetExhausted",
    "BudgetedResponse",
    "Certificate",
    "Certified",
    "Client",
    "Dataset",
    "HoldfastClassifier",
    "HoldfastError",
    "Ledger",
    "LinearRecipe",
    "Neighbours",
    "Preprocessing",
    "PrivatePredictor",
    "Recipe",
    "ReleasedHead",
    "SparseVector",
    "StableResponse",
    "__version__",
    "load",
    "per_query_epsilon",
    "plan",
    "release_head",
    "simulate",
    "total_epsilon",
    "train",
    "train_ensemble",
    "train_linear",
    "zero_output",
]
