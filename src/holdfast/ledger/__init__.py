"""The ledger: what was granted, spent and answered, for good."""

from .books import BudgetStatus
from .entries import Entry
from .ledger import Ledger

__all__ = ["BudgetStatus", "Entry", "Ledger"]
