"""The ledger: what was granted, spent and answered, for good."""

from .accounts import BudgetStatus
from .entries import Entry
from .ledger import Ledger

__all__ = ["BudgetStatus", "Entry", "Ledger"]
