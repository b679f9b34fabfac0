"""Ledger: budgets that can be spent once. Append-only, sealed, and on disk before an answer leaves. (docs/theory/ledger.md)"""

from __future__ import annotations

import json
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ..accounting import Budget
from ..checks import printable_name, real
from ..errors import HoldfastWarning, InvalidInput, TamperedLedger
from ..relations import Neighbours
from .accounts import Account, BudgetStatus, terms_of
from .database import Database
from .entries import GRANT, SHARE, Entry, masked
from .safe import Safe, default_home, keyed_hash, lived_at, locked_home, other_ledgers_with
from .transaction import Reader, Request, Spoiled, Transaction
from .writers import prepare_for_forks

T = TypeVar("T")


class Ledger:
    """Budgets, charges and answers, at an address such as "sqlite:///ledger.db" or "postgresql://user@host/database".

    `home`: the folder of the owner's key and of the ledger's head (HOLDFAST_HOME, or .holdfast in the user's home). Keep it
    apart from the database and its backups: it is how a changed, shortened or rewound ledger is found out. Hosts that
    share a ledger must share this folder too.

    Guarantees
    ----------
    What was answered for a data set never costs more than its budget, over all analysts, models and processes. An answer
    and its charge are one entry, on disk before `transact` returns. An entry that was changed, dropped or rewound ends every
    further transaction with TamperedLedger. (A running process notices at once what is dropped or rewound at the end, and
    other changes too if it has written alone since or if there are few entries; else after some transactions, since it
    reads them all again in a hundredth of its time. The head is on disk a second later at most while answers are given: a
    power cut may cost it what was written since.)
    """

    def __init__(self, address: str, home: str | PathLike[str] | None = None) -> None:
        if not isinstance(address, str):
            raise InvalidInput(f"ledger={address!r}: expected an address, for example 'sqlite:///ledger.db'")
        self.home = (default_home() if home is None else Path(home)).absolute()
        self._database = Database(address)
        self.address = self._database.address
        self._threads, self._taken = threading.RLock(), False
        self._local = threading.local()  # whether this thread is using the ledger
        self._waiting: deque[Request] = deque()
        self._settling = threading.Lock()
        self._settled = 0  # the number of an entry up to which all are known to be on disk and covered by the head
        self._safe: Safe | None = None
        self._reader = Reader()
        prepare_for_forks(self)

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
        beside_other_ledgers: bool = False,
    ) -> BudgetStatus:
        """Grant a budget to a data set, by the owner's name for it; makes the ledger where there is none.

        `neighbours`: the relation it is counted under; models under another cannot spend it. `queries`: for how many it is
        planned; the usual mechanism, and the Renyi order of a budget with delta > 0, follow from it and stay. `reserve`:
        the part of delta that is set aside for mechanisms that have a delta of their own (SparseVector).
        `beside_other_ledgers`: go on although this home knows a budget for the same name in another ledger; the two
        budgets add up.
        """
        name, terms = printable_name("name", name), terms_of(budget, neighbours, queries, order, reserve)
        terms.usual_mechanism()  # refuses a budget that allows nothing

        def grant(transaction: Transaction) -> BudgetStatus:
            if name in transaction.books.accounts:
                raise InvalidInput(f"the data set {name!r} has a budget already; raise_budget changes it")
            transaction.add(GRANT, name, about=terms.as_json())
            return BudgetStatus.of(transaction.books.account(name))

        with locked_home(self.home):
            elsewhere = other_ledgers_with(self.home, name, self._known_identity())
            if elsewhere and not beside_other_ledgers:
                raise InvalidInput(
                    f"{_adds_up(name, elsewhere)}. Use that ledger, or pass beside_other_ledgers=True (--beside-other-ledgers)"
                )
            with self._threads:
                self._open(create=True)
            status = self.transact(grant)
        if elsewhere:
            warnings.warn(_adds_up(name, elsewhere), HoldfastWarning, stacklevel=2)
        return status

    def raise_budget(self, name: str, budget: Budget) -> BudgetStatus:
        """Grant more. From then on the larger budget is what the records are protected by, earlier answers included."""
        if not isinstance(budget, Budget):
            raise InvalidInput(f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)")
        printable_name("name", name)

        def grant(transaction: Transaction) -> BudgetStatus:
            terms = transaction.books.account(name).terms
            if terms.reserve >= budget.delta > 0.0:
                raise InvalidInput(f"{budget}: its delta is not more than the {terms.reserve:g} that is set aside of it")
            if (budget.delta > 0.0) != (terms.order is not None):
                raise InvalidInput(f"{budget}: a budget stays with or without a delta; {name!r} has {terms.budget}")
            raised = replace(terms, budget=budget)
            if not terms.limit.within(raised.limit) or raised.limit == terms.limit:
                raise InvalidInput(f"{budget} does not allow more than {terms.budget}, which {name!r} has; a budget can only be raised")
            transaction.add(GRANT, name, about=raised.as_json())
            return BudgetStatus.of(transaction.books.account(name))

        return self.transact(grant)

    def set_share(self, name: str, analyst: str, share: float) -> BudgetStatus:
        """Let an analyst spend at most this part of the budget. Analysts may collude: the budget itself is what protects."""
        part = real(share)
        if not 0.0 <= part <= 1.0:
            raise InvalidInput(f"share={share!r}: expected a part of the budget, from 0 to 1")
        printable_name("name", name), printable_name("analyst", analyst)

        def grant(transaction: Transaction) -> BudgetStatus:
            account = transaction.books.account(name)
            transaction.add(SHARE, name, analyst, about=json.dumps({"share": part}))
            return BudgetStatus.of(account)

        return self.transact(grant)

    def status(self, name: str) -> BudgetStatus:
        """Return what was granted and spent."""
        printable_name("name", name)
        return self.transact(lambda transaction: BudgetStatus.of(transaction.books.account(name)))

    def names(self) -> list[str]:
        """Return the data sets that have a budget."""
        return self.transact(lambda transaction: sorted(transaction.books.accounts))

    def entries(self) -> list[Entry]:
        """Return all entries, verified."""
        return self.transact(Transaction.entries)

    def verify(self) -> int:
        """Read every entry again, and check all seals and sums; return the number of entries. Raises TamperedLedger."""
        with self._entered(), self._threads:
            self._reader = Reader()
        return self.transact(lambda transaction: transaction.head.number)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` while no other process or thread writes, with every entry verified.

        Threads that wait at the same time share one transaction of the database; an error of one does not touch the
        others.

        Args:
            work: Reads the books and adds entries. It may be run a second time if another thread's work failed.

        Returns:
            What `work` returned, after all that it saw and added is on disk and covered by the head outside.

        Raises:
            TamperedLedger: If an entry is not what was written.
            LedgerUnavailable: If the database or the folder of the head does not answer. What was added may or may not
                be there; nothing of it has been shown to anybody.
        """
        request = Request(work)
        with self._entered():
            self._waiting.append(request)
            try:
                with self._threads:
                    while not request.ended:
                        self._run_together(request)
            finally:
                if not request.ended:  # interrupted: nobody waits for it any more
                    with suppress(ValueError):
                        self._waiting.remove(request)
            self._settle(request)  # a refusal, too, tells what was seen
        if request.error is not None:
            raise request.error
        result: T = request.result
        return result

    def _run_together(self, mine: Request) -> None:
        """Run all requests that wait, in one transaction. If that fails, others than `mine` are left to their own threads."""
        together = [mine]
        try:
            while self._waiting:
                request = self._waiting.popleft()  # one that an interruption loses here is run by its own thread
                if request is not mine:
                    together.append(request)
            self._run(together)
        except Spoiled:
            pass  # whose fault it was has ended; the rest is run again
        finally:
            self._waiting.extendleft(reversed([request for request in together if request is not mine and not request.ended]))

    def _run(self, together: Sequence[Request]) -> None:
        self._taken, reader = True, self._reader
        try:
            safe = self._open(create=False)
            if safe.flush_failed:
                self._database.recover()
                safe.forget_failed_flush()
            outside = safe.head()  # before the entries are read: all up to it must be among them
            with self._database.transaction(safe.queue) as writer:
                reader.catch_up(writer, safe.key, outside)
                transaction = Transaction(reader, safe.key, writer)
                for request in together:
                    request.run(transaction)
                transaction.close()
                safe.remember(transaction.books.accounts, self._database.place)
                on_disk = transaction.head.number <= outside.number
                if not on_disk:
                    on_disk = (
                        writer.write([masked(entry, safe.key) for entry in transaction.added]) if transaction.added else writer.confirm()
                    )
                reader.head = transaction.head
                if not on_disk:
                    safe.queue.write(0, transaction.head, self._database.place)
            for request in together:
                request.end(safe, transaction.head, on_disk)
        except BaseException:
            self._reader = Reader()  # what was read or written is in doubt: read it anew
            raise
        finally:
            self._taken = False

    def _settle(self, request: Request) -> None:
        """Return when all entries that the request saw and added are on disk and covered by the head outside."""
        if request.safe is None or self._settled >= request.head.number:
            return
        with self._settling:
            if self._settled < request.head.number:
                flush = None if request.on_disk else self._database.flush
                self._settled = request.safe.settle(request.head, flush, self._database.place).number

    def sign(self, content: str) -> str:
        """Return the owner's signature of a text: a keyed hash that only this ledger's key can make, and its identity."""
        with self._threads:
            safe = self._open(create=False)
        return f"{safe.identity}:{keyed_hash(safe.key, b'signature', content.encode()).hex()}"

    def signed(self, signature: str) -> bool:
        """Return whether a signature claims to be of this ledger."""
        with self._threads:
            return signature.partition(":")[0] == self._open(create=False).identity

    def last_known(self, name: str) -> Account | None:
        """Return an account as this process last saw it, without a transaction: to be looked at, not to be relied on."""
        return self._reader.books.accounts.get(name)

    def hasher(self) -> Callable[..., bytes]:
        """The keyed hash of its arguments: without the owner's key nobody can tell from it what was asked."""
        with self._threads:
            return partial(keyed_hash, self._open(create=False).key)

    def close(self) -> None:
        """Let go of the database; the next use opens it again."""
        with self._entered(), self._threads:
            self._database.close()
            self._safe, self._reader, self._settled = None, Reader(), 0

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Refuse a thread that is using the ledger already, for example in a signal handler: it would wait for itself."""
        if getattr(self._local, "inside", False):
            raise InvalidInput("this thread is in a transaction of the ledger already; end it before another begins")
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = False

    def _known_identity(self) -> str | None:
        """Return which ledger this is, if there is one. Raises TamperedLedger if there was one, and it is gone."""
        with self._threads:
            if self._safe is not None or self._database.exists:
                return self._open(create=False).identity
            self._refuse_gone()
            return None

    def _open(self, create: bool) -> Safe:
        if self._database.exchanged():
            raise TamperedLedger(
                f"{self._database.place}: the database's files were exchanged while they were open; put back the latest, and begin anew"
            )
        if self._safe is None:
            self._safe = Safe(self.home, self._identity(create))
        return self._safe

    def _refuse_gone(self) -> None:
        lived = lived_at(self.home, self._database.place)
        if lived is not None:
            raise TamperedLedger(
                f"{self._database.place}: there was a ledger with entries here, and it is gone ({lived.name}); restore it from a copy"
            )

    def _identity(self, create: bool) -> str:
        place = self._database.place
        lived = lived_at(self.home, place)

        def make(identity: str) -> None:
            self._refuse_gone()
            if not create:
                raise InvalidInput(f"{place}: no ledger here; the owner makes it with the first budget: holdfast budget create")
            Safe.create(self.home, identity, place)

        if not create and not self._database.exists:
            make("")
        identity = self._database.identity(make)
        if lived is not None and lived.stem != identity:
            raise TamperedLedger(f"{place}: another ledger took the place of the one that was here ({lived.name}); put it back")
        return identity


def _adds_up(name: str, places: Sequence[str]) -> str:
    return (
        f"the data set {name!r} has a budget in another ledger, too: {', '.join(places)}. Budgets of two ledgers add up: "
        "what protects the records is their sum"
    )
