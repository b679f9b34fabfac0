"""The ledger: a durable record of privacy budgets, charges and answers."""

from .accounts import BudgetStatus
from .entries import COLUMNS, Entry
from .ledger import Ledger

__all__ = ["COLUMNS", "BudgetStatus", "Entry", "Ledger"]
