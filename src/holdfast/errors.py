"""The exceptions and warnings of holdfast.

Each message names the value, what was expected and what to do.
"""

import os
import sys
import warnings
from pathlib import Path

__all__ = [
    "AccessDenied",
    "BudgetExhausted",
    "CopiedLedger",
    "DamagedFile",
    "EngineUnavailable",
    "HoldfastError",
    "HoldfastWarning",
    "InvalidInput",
    "LedgerUnavailable",
    "RateLimited",
    "ServiceUnavailable",
    "TamperedLedger",
    "UnsoundBounds",
    "UnsupportedModel",
]


class HoldfastError(Exception):
    """Base class of all errors of holdfast."""


class InvalidInput(HoldfastError, ValueError):
    """Records, labels, ids or settings are not valid; raised before any work starts."""


class UnsupportedModel(HoldfastError, TypeError):
    """The model has a part that holdfast cannot bound."""


class UnsoundBounds(HoldfastError, ArithmeticError):
    """Bounds are crossed, NaN or not nested, or the arithmetic does not satisfy the proof.

    Never continue after this error.
    """


class DamagedFile(HoldfastError):
    """A saved file is damaged, of another kind, or of another format version."""


class EngineUnavailable(HoldfastError):
    """The engine of a training run cannot be started, or lost its workers; nothing was returned."""


class HoldfastWarning(UserWarning):
    """Something that the owner should know, such as a part of the model that has no effect."""


class BudgetExhausted(HoldfastError):
    """Too little of the budget is left. Queries without an answer were not charged."""


class TamperedLedger(HoldfastError):
    """The ledger is not what was written, or its key or head is gone; nothing was answered."""


class CopiedLedger(TamperedLedger):
    """This database is a copy of a ledger that has gone on elsewhere; nothing was answered."""


class LedgerUnavailable(HoldfastError):
    """The ledger cannot be reached or cannot store entries durably; nothing was answered."""


class AccessDenied(HoldfastError):
    """A key or a token is not valid, or does not allow this; nothing was answered or charged."""


class RateLimited(HoldfastError):
    """Too many answers in a short time; nothing was answered or charged, so try again later."""


class ServiceUnavailable(HoldfastError):
    """A service cannot be reached, or gave an answer that is not its own; ask again later."""


_PACKAGE = str(Path(__file__).parent) + os.sep  # other packages may begin with this name


def warn(text: str) -> None:
    """Warn the user of holdfast, at the line that called it.

    That is the innermost line outside the package, however many functions are between.

    Args:
        text: What the user should know, and what to do.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, HoldfastWarning, stacklevel=level)
