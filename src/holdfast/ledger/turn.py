"""Turn: what the one process that may write sees and adds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..errors import BudgetExhausted, InvalidInput
from .books import Account
from .entries import Entry, Head
from .meter import Amount
from .reader import Reader, everything
from .safe import keyed_hash
from .writers import Writer


class Turn:
    """What a holder of the turn sees and adds. Sums are kept up with what is added."""

    def __init__(self, reader: Reader, key: bytes, writer: Writer) -> None:
        self.books, self.head, self._key, self._writer = reader.books, reader.head, key, writer
        self.added: list[Entry] = []
        self._ended = ""

    def close(self) -> None:
        """No more is added; raises where an entry was refused, for then none of them is written."""
        reason, self._ended = self._ended, "the turn has ended"
        if reason:
            raise InvalidInput(f"{reason}; nothing was written")

    def afford(self, account: Account, amount: Amount, analyst: str, what: str, each: Amount | None = None) -> None:
        """Raise BudgetExhausted where the amount is not left; the message says what is, and how many of `each` would fit."""
        left = account.remaining(analyst)
        if amount.within(left):
            return
        shown, fits = account.terms.meter.shown, (each or amount).times_in(left)
        whose = f" for {analyst!r}, by a share" if left != account.remaining() else ""
        raise BudgetExhausted(
            f"{what} would cost {shown(amount.loss):g} in {account.terms.meter.name}"
            + (" and more delta than is left" if amount.leak > left.leak else "")
            + f"; left{whose} of the budget of {account.name!r}: {shown(max(0, left.loss)):g}"
            + (f", enough for {fits}" if each is not None else "")
            + ". Nothing was answered or charged; the owner may raise the budget (holdfast budget raise)"
        )

    def add(self, kind: str, dataset: str, analyst: str = "", amount: Amount = Amount(), **rest: Any) -> None:  # noqa: B008 (frozen)
        """Append an entry that takes the amount."""
        if self._ended:
            raise InvalidInput(f"{self._ended}; nothing was written")
        time_now = datetime.now(UTC).isoformat(timespec="milliseconds")
        rest |= {"loss": str(amount.loss), "leak": str(amount.leak)}
        entry = Entry(self.head.number + 1, time_now, kind, dataset, analyst, **rest)
        entry = entry._replace(seal=entry.sealed(self._key, self.head.seal))
        self.added.append(entry)
        self._ended = f"entry {entry.number} was refused"
        self.books.enter(entry)
        self._ended = ""
        self.head = Head(entry.number, entry.seal)

    def hashed(self, *parts: bytes) -> bytes:
        """A keyed hash of the parts, as `Ledger.hasher` makes it."""
        return keyed_hash(self._key, *parts)

    def entries(self) -> list[Entry]:
        """All entries, read again and verified."""
        return everything(self._writer, self._key)
