"""Every error holdfast raises on purpose. Each message names the value, what was expected and what to do."""


class HoldfastError(Exception):
    """Base of all errors of holdfast."""


class InvalidInput(HoldfastError, ValueError):
    """Records, labels, ids or settings that cannot be certified; raised before any work starts."""


class UnsupportedModel(HoldfastError, TypeError):
    """A model with a part that holdfast cannot bound."""


class UnsoundBounds(HoldfastError, ArithmeticError):
    """Crossed, NaN or un-nested bounds, or arithmetic that cannot carry the proof: never continue after this."""


class DamagedFile(HoldfastError):
    """A saved file that is damaged, foreign, or of another format version."""


class HoldfastWarning(UserWarning):
    """Something that the owner should know: a part of the model without effect, or numbers that overflowed."""


class BudgetExhausted(HoldfastError):
    """Not enough is left to spend. The queries were not answered and nothing was charged for them."""


class TamperedLedger(HoldfastError):
    """The ledger is not what was written to it, or its key or head is gone: nothing was answered."""


class LedgerUnavailable(HoldfastError):
    """The ledger's database cannot be reached, or cannot keep what is written to it: nothing was answered."""
