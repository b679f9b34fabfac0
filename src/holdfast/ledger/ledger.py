"""The ledger: an append-only, sealed record of privacy budgets and of what was spent.

Every entry is on disk before the answer that it pays for is returned (docs/theory/ledger.md).
"""

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
from ..checks import as_float_or_nan, check_name
from ..errors import HoldfastWarning, InvalidInput, TamperedLedger
from ..relations import Neighbours
from .accounts import Account, BudgetStatus, make_terms
from .database import Database
from .entries import GRANT, SHARE, Entry, mask_label
from .key_store import (
    KeyStore,
    default_home,
    find_head_file,
    keyed_hash,
    locked_home,
    other_ledgers_with,
)
from .transaction import Reader, Request, Transaction, TransactionAborted
from .writers import prepare_for_forks

T = TypeVar("T")


class Ledger:
    """Budgets, charges and answers in a database, shared by any number of processes.

    Args:
        address: A database URL such as "sqlite:///ledger.db" or "postgresql://user@host/database".
        home: The folder that holds the owner's key and the ledger's head; by default HOLDFAST_HOME,
            or .holdfast in the user's home folder. Keep it apart from the database and its backups:
            it is needed to detect that a ledger was changed, shortened or rolled back. Hosts that
            share a ledger must share this folder too.

    Raises:
        InvalidInput: If the address is not understood.

    Guarantees:
        The answers given for a data set never cost more than its budget, over all analysts, models
        and processes. An answer and its charge are one entry, which is on disk before `transact`
        returns. Once an entry was changed, dropped or rolled back, transactions raise
        TamperedLedger.

        A running process detects at once that entries at the end were dropped or rolled back. It
        detects other changes at once if there are few entries or, with SQLite, if no other process
        has added entries since; otherwise it detects them after some transactions, because it
        spends about a hundredth of its time on reading all entries again.

        While answers are given, the head is flushed to disk at most a second after it is written.
        A power cut may lose the head updates since the last flush.

    Example:
        >>> import holdfast as hf
        >>> ledger = hf.Ledger("sqlite:///budgets.db", home="keys")
        >>> ledger.create_budget("ward-7", hf.Budget(10.0, 1e-5), queries=1000).answers
        0
    """

    def __init__(self, address: str, *, home: str | PathLike[str] | None = None) -> None:
        if not isinstance(address, str):
            raise InvalidInput(
                f"ledger={address!r}: expected an address, for example 'sqlite:///ledger.db'"
            )
        self.home = (default_home() if home is None else Path(home)).absolute()
        self._database = Database(address)
        self.address = self._database.address
        self._lock, self._in_transaction = threading.RLock(), False
        self._local = threading.local()  # whether this thread is using the ledger
        self._waiting: deque[Request] = deque()
        self._settling = threading.Lock()
        self._settled = 0  # all entries up to this number are on disk and covered by the head
        self._key_store: KeyStore | None = None
        self._reader = Reader()
        prepare_for_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Ledger, home=self.home), (self.address,)  # a pickle never holds the key

    def __repr__(self) -> str:
        return f"Ledger({self._database.location!r})"

    def create_budget(
        self,
        name: str,
        budget: Budget,
        *,
        neighbours: Neighbours | str = "add_remove",
        queries: int = 1000,
        order: float | None = None,
        reserve: float = 0.0,
        beside_other_ledgers: bool = False,
    ) -> BudgetStatus:
        """Grant a budget to a data set, and create the ledger if there is none.

        Args:
            name: The owner's name for the data set.
            budget: The total budget.
            neighbours: The relation under which the budget is counted; models trained under another
                relation cannot spend it.
            queries: The planned number of queries. It determines the default mechanism and, if
                delta > 0 and no `order` is given, the Rényi order; both stay fixed.
            order: The Rényi order at which a budget with a delta is counted.
            reserve: The part of delta that is set aside for mechanisms with a delta of their own
                (SparseVector).
            beside_other_ledgers: Whether to grant it even if another ledger of this home has a
                budget for the same name; the two budgets then add up.

        Returns:
            The status of the new budget.

        Raises:
            InvalidInput: If the data set has a budget already, here or in another ledger of this
                home, or the budget allows nothing.
            LedgerUnavailable: If the ledger cannot be reached.
        """
        name, terms = (
            check_name("name", name),
            make_terms(budget, neighbours, queries, order, reserve),
        )
        terms.default_mechanism()  # raises InvalidInput if the budget allows nothing

        def grant(transaction: Transaction) -> BudgetStatus:
            if name in transaction.books.accounts:
                raise InvalidInput(
                    f"the data set {name!r} has a budget already; use raise_budget to raise it"
                )
            transaction.add(GRANT, name, about=terms.as_json())
            return BudgetStatus.of(transaction.books.account(name))

        with locked_home(self.home):
            elsewhere = other_ledgers_with(self.home, name, self._known_identity())
            if elsewhere and not beside_other_ledgers:
                raise InvalidInput(
                    f"{_other_ledger_warning(name, elsewhere)}. Use that ledger, or pass "
                    "beside_other_ledgers=True (--beside-other-ledgers)"
                )
            with self._lock:
                self._open(create=True)
            status = self.transact(grant)
        if elsewhere:
            warnings.warn(_other_ledger_warning(name, elsewhere), HoldfastWarning, stacklevel=2)
        return status

    def raise_budget(self, name: str, budget: Budget) -> BudgetStatus:
        """Raise the budget of a data set.

        From then on the larger budget is what protects the records, for earlier answers too.

        Args:
            name: The data set.
            budget: The new total, which must allow more than the current one.

        Returns:
            The status of the raised budget.

        Raises:
            InvalidInput: If there is no such data set, or the budget does not allow more.
        """
        if not isinstance(budget, Budget):
            raise InvalidInput(
                f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)"
            )
        check_name("name", name)

        def grant(transaction: Transaction) -> BudgetStatus:
            terms = transaction.books.account(name).terms
            if terms.reserve >= budget.delta > 0.0:
                raise InvalidInput(
                    f"{budget}: expected a delta above the reserve of {terms.reserve:g} that is "
                    "set aside from it; raise delta"
                )
            if (budget.delta > 0.0) != (terms.order is not None):
                raise InvalidInput(
                    f"{budget}: a budget must stay with or without a delta; {name!r} has "
                    f"{terms.budget}"
                )
            raised = replace(terms, budget=budget)
            if not terms.limit.within(raised.limit) or raised.limit == terms.limit:
                raise InvalidInput(
                    f"{budget} does not allow more than {terms.budget}, the current budget of "
                    f"{name!r}; a budget can only be raised"
                )
            transaction.add(GRANT, name, about=raised.as_json())
            return BudgetStatus.of(transaction.books.account(name))

        return self.transact(grant)

    def set_share(self, name: str, analyst: str, share: float) -> BudgetStatus:
        """Limit an analyst to a share of the budget, from 0 to 1.

        Analysts may collude, so the records are protected by the budget itself, not by the shares.
        """
        part = as_float_or_nan(share)
        if not 0.0 <= part <= 1.0:
            raise InvalidInput(f"share={share!r}: expected a fraction of the budget, from 0 to 1")
        check_name("name", name), check_name("analyst", analyst)

        def grant(transaction: Transaction) -> BudgetStatus:
            account = transaction.books.account(name)
            transaction.add(SHARE, name, analyst, about=json.dumps({"share": part}))
            return BudgetStatus.of(account)

        return self.transact(grant)

    def status(self, name: str) -> BudgetStatus:
        """Return what was granted to a data set and spent from it."""
        check_name("name", name)
        return self.transact(lambda transaction: BudgetStatus.of(transaction.books.account(name)))

    def names(self) -> list[str]:
        """Return the names of the data sets that have a budget, in alphabetical order."""
        return self.transact(lambda transaction: sorted(transaction.books.accounts))

    def entries(self) -> list[Entry]:
        """Return all entries, verified."""
        return self.transact(Transaction.entries)

    def verify(self) -> int:
        """Read all entries again, check their seals and sums, and return their number.

        Raises:
            TamperedLedger: If an entry is not what was written.
        """
        with self._refuse_reentry(), self._lock:
            self._reader = Reader()
        return self.transact(lambda transaction: transaction.head.number)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` while no other process or thread writes, after verifying the entries.

        Threads that wait at the same time share one database transaction; an error in the work of
        one does not affect the others.

        Args:
            work: Reads the books and adds entries. It may run again if another thread's work
                failed.

        Returns:
            The result of `work`, once all entries that it saw or added are on disk and covered by
            the head outside the database.

        Raises:
            TamperedLedger: If an entry is not what was written.
            LedgerUnavailable: If the database or the home folder cannot be read or written. The
                added entries may or may not be stored; none of them has been shown to anybody.
        """
        request = Request(work)
        with self._refuse_reentry():
            self._waiting.append(request)
            try:
                with self._lock:
                    while not request.ended:
                        self._run_waiting(request)
            finally:
                if not request.ended:  # interrupted: nobody is waiting for it any more
                    with suppress(ValueError):
                        self._waiting.remove(request)
            self._settle(request)  # a refusal also reveals what was seen
        if request.error is not None:
            raise request.error
        result: T = request.result
        return result

    def _run_waiting(self, mine: Request) -> None:
        """Run all waiting requests in one transaction.

        If it fails, the unfinished requests other than `mine` return to the queue.
        """
        together = [mine]
        try:
            while self._waiting:
                # If an interruption loses this request here, its own thread runs it.
                request = self._waiting.popleft()
                if request is not mine:
                    together.append(request)
            self._run(together)
        except TransactionAborted:
            pass  # the failed request has ended; the others run again
        finally:
            self._waiting.extendleft(
                reversed(
                    [request for request in together if request is not mine and not request.ended]
                )
            )

    def _run(self, together: Sequence[Request]) -> None:
        self._in_transaction, reader = True, self._reader
        try:
            key_store = self._open(create=False)
            if key_store.flush_failed:
                self._database.recover()
                key_store.forget_failed_flush()
            outside = key_store.head()  # read first: the entries read below must reach it
            with self._database.transaction(key_store.queue) as writer:
                reader.catch_up(writer, key_store.key, outside)
                transaction = Transaction(reader, key_store.key, writer)
                for request in together:
                    request.run(transaction)
                transaction.close()
                key_store.record_datasets(transaction.books.accounts, self._database.location)
                on_disk = transaction.head.number <= outside.number
                if not on_disk:
                    on_disk = (
                        writer.write(
                            [mask_label(entry, key_store.key) for entry in transaction.added]
                        )
                        if transaction.added
                        else writer.commit_reads()
                    )
                reader.head = transaction.head
                if not on_disk:
                    key_store.queue.write(0, transaction.head, self._database.location)
            for request in together:
                request.end(key_store, transaction.head, on_disk)
        except BaseException:
            self._reader = Reader()  # its state is in doubt: read everything again
            raise
        finally:
            self._in_transaction = False

    def _settle(self, request: Request) -> None:
        """Wait until all entries that the request saw or added are on disk and under the head."""
        if request.key_store is None or self._settled >= request.head.number:
            return
        with self._settling:
            if self._settled < request.head.number:
                flush = None if request.on_disk else self._database.flush
                self._settled = request.key_store.advance_head(
                    request.head, flush, self._database.location
                ).number

    def sign(self, content: str) -> str:
        """Return the owner's signature of a text: the ledger's identity and a keyed hash.

        The hash can be computed only with this ledger's key.
        """
        with self._lock:
            key_store = self._open(create=False)
        signature = keyed_hash(key_store.key, b"signature", content.encode()).hex()
        return f"{key_store.identity}:{signature}"

    def claims_signature(self, signature: str) -> bool:
        """Return whether a signature names this ledger; the signature itself is not checked."""
        with self._lock:
            return signature.partition(":")[0] == self._open(create=False).identity

    def last_known(self, name: str) -> Account | None:
        """Return an account as this process last saw it, without a transaction.

        The account may be out of date: use it only as a hint.
        """
        return self._reader.books.accounts.get(name)

    def hasher(self) -> Callable[..., bytes]:
        """Return a function that computes the keyed hash of its arguments.

        Without the owner's key, nobody can tell from a hash what was asked.
        """
        with self._lock:
            return partial(keyed_hash, self._open(create=False).key)

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        with self._refuse_reentry(), self._lock:
            self._database.close()
            self._key_store, self._reader, self._settled = None, Reader(), 0

    @contextmanager
    def _refuse_reentry(self) -> Iterator[None]:
        """Raise InvalidInput if this thread is already using the ledger.

        Such a thread, for example in a signal handler, would wait for itself.
        """
        if getattr(self._local, "inside", False):
            raise InvalidInput(
                "this thread is in a transaction of the ledger already; end it before starting "
                "another"
            )
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = False

    def _known_identity(self) -> str | None:
        """Return the ledger's identity, or None if there is no ledger yet.

        Raises:
            TamperedLedger: If there was a ledger here and it is gone.
        """
        with self._lock:
            if self._key_store is not None or self._database.exists:
                return self._open(create=False).identity
            self._refuse_missing_ledger()
            return None

    def _open(self, create: bool) -> KeyStore:
        if self._database.files_replaced():
            raise TamperedLedger(
                f"{self._database.location}: the database's files were exchanged while they were "
                "open; restore the latest copy, then close the ledger and open it again"
            )
        if self._key_store is None:
            self._key_store = KeyStore(self.home, self._identity(create))
        return self._key_store

    def _refuse_missing_ledger(self) -> None:
        lived = find_head_file(self.home, self._database.location)
        if lived is not None:
            raise TamperedLedger(
                f"{self._database.location}: there was a ledger with entries here, and it is "
                f"gone ({lived.name}); restore it from a copy"
            )

    def _identity(self, create: bool) -> str:
        place = self._database.location
        lived = find_head_file(self.home, place)

        def make(identity: str) -> None:
            self._refuse_missing_ledger()
            if not create:
                raise InvalidInput(
                    f"{place}: no ledger here; the owner creates it with the first budget: "
                    "holdfast budget create"
                )
            KeyStore.create(self.home, identity, place)

        if not create and not self._database.exists:
            make("")
        identity = self._database.identity(make)
        if lived is not None and lived.stem != identity:
            raise TamperedLedger(
                f"{place}: another ledger took the place of the one that was here "
                f"({lived.name}); restore the original"
            )
        return identity


def _other_ledger_warning(name: str, places: Sequence[str]) -> str:
    return (
        f"the data set {name!r} has a budget in another ledger, too: {', '.join(places)}. "
        "Budgets of two ledgers add up: what protects the records is their sum"
    )
