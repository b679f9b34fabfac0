"""Ledger: budgets that can be spent once. Append-only, sealed, and committed before an answer leaves. (docs/theory/ledger.md)"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ..accounting import Budget
from ..checks import printable_name, real
from ..errors import HoldfastError, InvalidInput, TamperedLedger
from ..neighbours import Neighbours
from .books import BudgetStatus
from .database import Database
from .entries import GRANT, SHARE, Entry
from .reader import Reader
from .safe import Safe, default_home, keyed_hash, lived_at
from .terms import terms_of
from .turn import Turn


class Ledger:
    """Budgets, charges and answers, at an address such as "sqlite:///ledger.db" or "postgresql://user@host/database".

    `home`: the folder of the owner's key and of the ledger's head (HOLDFAST_HOME, or .holdfast in the user's home). Keep it
    apart from the database and its backups: it is how a changed, shortened or rewound ledger is found out. Hosts that
    share a ledger must share this folder too.

    Guarantees
    ----------
    What was answered for a data set never costs more than its budget, over all analysts, models and processes. An answer
    and its charge are one entry, on disk before `turn` ends. An entry that was changed, dropped or rewound ends every
    further turn with TamperedLedger. (A running process notices at once what is dropped or rewound at the end, and other
    changes too if it has written alone since or if there are few entries; else after some turns, since it reads them
    all again in a hundredth of its time. The head is on disk a second later at most while answers are given: a power cut
    may cost it what was written since.)
    """

    def __init__(self, address: str, home: str | PathLike[str] | None = None) -> None:
        if not isinstance(address, str):
            raise InvalidInput(f"ledger={address!r}: expected an address, for example 'sqlite:///ledger.db'")
        self.home = (default_home() if home is None else Path(home)).absolute()
        self._database = Database(address)
        self.address = self._database.address
        self._threads, self._taken = threading.RLock(), False
        self._safe: Safe | None = None
        self._reader = Reader()
        _LEDGERS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger, (self.address, self.home)  # a pickle holds the address alone

    def __repr__(self) -> str:
        return f"Ledger({self._database.place!r})"

    def create_budget(
        self,
        name: str,
        budget: Budget,
        neighbours: Neighbours | str = "add_remove",
        queries: int = 1000,
        order: float | None = None,
        reserve: float = 0.0,
    ) -> BudgetStatus:
        """Grant a budget to a data set, by the owner's name for it; makes the ledger where there is none.

        `neighbours`: the relation it is counted under; models under another cannot spend it. `queries`: for how many it is
        planned; the usual mechanism, and the Renyi order of a budget with delta > 0, follow from it and stay. `reserve`:
        the part of delta that is set aside for mechanisms that have a delta of their own (SparseVector).
        """
        name, terms = printable_name("name", name), terms_of(budget, neighbours, queries, order, reserve)
        terms.usual_mechanism()  # refuses a budget that allows nothing
        with self.turn(create=True) as turn:
            if name in turn.books.accounts:
                raise InvalidInput(f"the data set {name!r} has a budget already; raise_budget changes it")
            turn.add(GRANT, name, about=terms.as_json())
        return self.status(name)

    def raise_budget(self, name: str, budget: Budget) -> BudgetStatus:
        """Grant more. From then on the larger budget is what the records are protected by, earlier answers included."""
        if not isinstance(budget, Budget):
            raise InvalidInput(f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)")
        with self.turn() as turn:
            terms = turn.books.account(printable_name("name", name)).terms
            if terms.reserve >= budget.delta > 0.0:
                raise InvalidInput(f"{budget}: its delta is not more than the {terms.reserve:g} that is set aside of it")
            if (budget.delta > 0.0) != (terms.order is not None):
                raise InvalidInput(f"{budget}: a budget stays with or without a delta; {name!r} has {terms.budget}")
            raised = replace(terms, budget=budget)
            if not terms.limit.within(raised.limit) or raised.limit == terms.limit:
                raise InvalidInput(f"{budget} does not allow more than {terms.budget}, which {name!r} has; a budget can only be raised")
            turn.add(GRANT, name, about=raised.as_json())
        return self.status(name)

    def set_share(self, name: str, analyst: str, share: float) -> BudgetStatus:
        """Let an analyst spend at most this part of the budget. Analysts may collude: the budget itself is what protects."""
        part = real(share)
        if not 0.0 <= part <= 1.0:
            raise InvalidInput(f"share={share!r}: expected a part of the budget, from 0 to 1")
        with self.turn() as turn:
            turn.books.account(printable_name("name", name))
            turn.add(SHARE, name, printable_name("analyst", analyst), about=json.dumps({"share": part}))
        return self.status(name)

    def status(self, name: str) -> BudgetStatus:
        """What was granted and spent."""
        with self.turn() as turn:
            return BudgetStatus.of(turn.books.account(printable_name("name", name)))

    def names(self) -> list[str]:
        """The data sets that have a budget."""
        with self.turn() as turn:
            return sorted(turn.books.accounts)

    def entries(self) -> list[Entry]:
        """All entries, verified."""
        with self.turn() as turn:
            return turn.entries()

    def verify(self) -> int:
        """Read every entry again, and check all seals and sums; the number of entries. Raises TamperedLedger."""
        with self._threads:
            self._refuse_taken()
            self._reader = Reader()
            with self.turn() as turn:
                return turn.head.number

    @contextmanager
    def turn(self, create: bool = False) -> Iterator[Turn]:
        """Exclusive among all processes, with every entry verified. What is added is on disk when it ends, or not at all."""
        with self._threads:
            self._refuse_taken()
            self._taken, turn, reader = True, None, self._reader
            try:
                with self._open(create).opened() as outside, self._database.turn() as writer:
                    reader.catch_up(writer, outside.key, outside.head)
                    outside.advance(reader.head, self._database.place)  # a process may have died before it did
                    turn = Turn(reader, outside.key, writer)
                    yield turn
                    turn.close()
                    if turn.added:
                        writer.write(turn.added)
                        reader.head = turn.head
                        outside.advance(turn.head, self._database.place)
            except BaseException as error:
                if turn is None or turn.added or not isinstance(error, HoldfastError):
                    self._reader = Reader()  # what was read or written is in doubt: read it anew
                raise
            finally:
                self._taken = False

    def hasher(self) -> Callable[..., bytes]:
        """The keyed hash of its arguments: without the owner's key nobody can tell from it what was asked."""
        with self._threads:
            return partial(keyed_hash, self._open(create=False).key)

    def close(self) -> None:
        """Let go of the database; the next use opens it again."""
        with self._threads:
            self._refuse_taken()
            self._database.close()
            self._safe, self._reader = None, Reader()

    def _refuse_taken(self) -> None:
        if self._taken:
            raise InvalidInput("this thread has the ledger's turn already; end it before another begins")

    def _open(self, create: bool) -> Safe:
        if self._database.exchanged():
            raise TamperedLedger(
                f"{self._database.place}: the database's files were exchanged while they were open; put back the latest, and begin anew"
            )
        if self._safe is None:
            self._safe = Safe(self.home, self._identity(create))
        return self._safe

    def _identity(self, create: bool) -> str:
        place = self._database.place
        lived = lived_at(self.home, place)

        def make(identity: str) -> None:
            if lived is not None:
                raise TamperedLedger(
                    f"{place}: there was a ledger with entries here, and it is gone ({lived.name}); restore it from a copy"
                )
            if not create:
                raise InvalidInput(f"{place}: no ledger here; the owner makes it with the first budget: holdfast budget create")
            Safe.create(self.home, identity, place)

        if not create and not self._database.exists:
            make("")
        identity = self._database.identity(make)
        if lived is not None and lived.stem != identity:
            raise TamperedLedger(f"{place}: another ledger took the place of the one that was here ({lived.name}); put it back")
        return identity


_LEDGERS: WeakSet[Ledger] = WeakSet()
_HELD: list[Ledger] = []


def _before_fork() -> None:
    """No connection may be open in two processes: SQLite's locks do not survive a fork, and a server speaks to one client."""
    _HELD.extend(_LEDGERS)
    for ledger in _HELD:
        ledger._threads.acquire()
        if not ledger._taken:
            ledger._database.close()


def _after_fork() -> None:
    while _HELD:
        _HELD.pop()._threads.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
