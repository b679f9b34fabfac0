"""The ledger: a durable record of privacy budgets, charges and answers."""

from .accounts import BudgetStatus
from .backup import Restored, restore_backup
from .database import has_password
from .entries import COLUMNS, Entry
from .keys import AccessKey, add_key, list_keys, revoke_key, rotate_key
from .ledger import Ledger

__all__ = [
    "COLUMNS",
    "AccessKey",
    "BudgetStatus",
    "Entry",
    "Ledger",
    "Restored",
    "add_key",
    "has_password",
    "list_keys",
    "restore_backup",
    "revoke_key",
    "rotate_key",
]
