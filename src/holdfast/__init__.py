"""holdfast: predictions that hold fast when people come and go.

The package follows the path of the data, and each step has its own immutable type:

    Records -> ParameterBounds (one per distance k) -> Certificate (label, distance)
            -> Mechanism -> charge (Ledger) -> Answer

`train` bounds every model that training could have produced had up to k records been added, removed
or exchanged; `Certified.certify` returns the label of each query and the distance up to which it is
stable. Certificates are not private by themselves: a mechanism turns them into private labels, at a
stated cost per answer. `PrivatePredictor` charges that cost to a budget in a durable `Ledger`
before it returns the answer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .accounting import ApproximateGuarantee, Budget, RenyiGuarantee, per_query_epsilon, total_epsilon
    from .certificates import Certificate
    from .errors import (
        BudgetExhausted,
        DamagedFile,
        HoldfastError,
        HoldfastWarning,
        InvalidInput,
        LedgerUnavailable,
        TamperedLedger,
        UnsoundBounds,
        UnsupportedModel,
    )
    from .layers.initial import zero_output
    from .ledger import BudgetStatus, Ledger
    from .mechanisms import (
        UNSTABLE,
        BudgetedResponse,
        CauchyResponse,
        LaplaceResponse,
        NoisyArgmax,
        SeededEntropyForTests,
        SparseVector,
        StableResponse,
    )
    from .models.certified import Certified, train
    from .models.ensemble import CertifiedEnsemble, train_ensemble
    from .models.saved import load
    from .preprocessing import Preprocessing
    from .records.records import HashKFold
    from .relations import Neighbours
    from .serving import Answer, Preview, PrivatePredictor
    from .serving.estimator import HoldfastClassifier
    from .training import Diagnosis, ParameterBounds, Recipe

_MODULES = {  # the public names of each module, which is imported when one of them is first used
    "accounting": ("ApproximateGuarantee", "Budget", "RenyiGuarantee", "per_query_epsilon", "total_epsilon"),
    "certificates": ("Certificate",),
    "models.certified": ("Certified", "train"),
    "models.ensemble": ("CertifiedEnsemble", "train_ensemble"),
    "errors": (
        "BudgetExhausted",
        "DamagedFile",
        "HoldfastError",
        "HoldfastWarning",
        "InvalidInput",
        "LedgerUnavailable",
        "TamperedLedger",
        "UnsoundBounds",
        "UnsupportedModel",
    ),
    "serving.estimator": ("HoldfastClassifier",),
    "records.records": ("HashKFold",),
    "ledger": ("BudgetStatus", "Ledger"),
    "mechanisms": (
        "UNSTABLE",
        "BudgetedResponse",
        "CauchyResponse",
        "LaplaceResponse",
        "NoisyArgmax",
        "SeededEntropyForTests",
        "SparseVector",
        "StableResponse",
    ),
    "relations": ("Neighbours",),
    "serving": ("Answer", "Preview", "PrivatePredictor"),
    "preprocessing": ("Preprocessing",),
    "layers.initial": ("zero_output",),
    "models.saved": ("load",),
    "training": ("Diagnosis", "ParameterBounds", "Recipe"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "UNSTABLE",
    "Answer",
    "ApproximateGuarantee",
    "Budget",
    "BudgetExhausted",
    "BudgetStatus",
    "BudgetedResponse",
    "CauchyResponse",
    "Certificate",
    "Certified",
    "CertifiedEnsemble",
    "DamagedFile",
    "Diagnosis",
    "HashKFold",
    "HoldfastClassifier",
    "HoldfastError",
    "HoldfastWarning",
    "InvalidInput",
    "LaplaceResponse",
    "Ledger",
    "LedgerUnavailable",
    "Neighbours",
    "NoisyArgmax",
    "ParameterBounds",
    "Preprocessing",
    "Preview",
    "PrivatePredictor",
    "Recipe",
    "RenyiGuarantee",
    "SeededEntropyForTests",
    "SparseVector",
    "StableResponse",
    "TamperedLedger",
    "UnsoundBounds",
    "UnsupportedModel",
    "__version__",
    "load",
    "per_query_epsilon",
    "total_epsilon",
    "train",
    "train_ensemble",
    "zero_output",
]
