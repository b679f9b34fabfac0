"""The ledger: an append-only, sealed record of privacy budgets and of what was spent.

Every entry is on disk before the answer that it pays for is returned (docs/theory/ledger.md).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

from ..accounting import Budget
from ..checks import as_float_or_nan, check_name, check_new_name
from ..errors import InvalidInput, TamperedLedger, warn
from ..relations import Neighbours
from ..workers import progress_bar
from .accounts import Account, BudgetStatus, make_terms
from .backup import write_backup
from .entries import CLOSE, GRANT, PAGE, SHARE, Entry, Head
from .key_store import keyed_hash, locked_home, other_ledgers_with
from .shared import RunningVerification, SharedLedger, read_verified
from .transaction import Reader, Standing, Transaction

_LOG = logging.getLogger(__name__)


class Ledger(SharedLedger):
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

        A process detects at once that entries at the end were dropped or rolled back. It detects a
        change of an older entry when that entry is asked for; otherwise after some transactions,
        because it spends about a hundredth of its time on verifying all entries again, or by
        `verify`. A process that starts begins with the sums of the latest checkpoint.

        While answers are given, the head is flushed to disk at most a second after it is written.
        A power cut may lose the head updates since the last flush.

    Example:
        >>> import holdfast as hf
        >>> ledger = hf.Ledger("sqlite:///budgets.db", home="keys")
        >>> ledger.create_budget("ward-7", hf.Budget(10.0, 1e-5), queries=1000).answers
        0
    """

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
        release: bool = False,
        beside_other_ledgers: bool = False,
    ) -> BudgetStatus:
        """Grant a budget to a data set, and create the ledger if there is none.

        Args:
            name: The owner's name for the data set.
            budget: The total budget.
            neighbours: The relation under which the budget is counted, such as "add_remove" or, per
                person, "add_remove_person"; models trained under another relation cannot spend it.
            queries: The planned number of queries. It determines the default mechanism and, if
                delta > 0 and no `order` is given, the Rényi order; both stay fixed.
            order: The Rényi order at which a budget with a delta is counted.
            reserve: The part of delta that is set aside for mechanisms with a delta of their own
                (SparseVector).
            release: Whether it is for the release of a head (`hf.release_head`) rather than for
                answers; the Rényi order, which stays fixed, is then the best for that.
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
            check_new_name("name", name),
            make_terms(budget, neighbours, queries, order, reserve, release),
        )
        if not release:
            terms.default_mechanism()  # raises InvalidInput if the budget allows nothing

        def grant(transaction: Transaction) -> BudgetStatus:
            transaction.books.refuse_lost(name)
            existing = transaction.books.find(name)
            if existing is not None:
                raise InvalidInput(
                    f"the data set {existing.name!r} has a budget already; to raise it, use "
                    "`holdfast budget raise`, or raise_budget in Python"
                )
            transaction.add(GRANT, name, about=terms.as_json())
            return BudgetStatus.of(transaction.books.account(name))

        with locked_home(self.home):
            elsewhere = self.other_ledgers_with(name)
            if elsewhere and not beside_other_ledgers:
                raise InvalidInput(
                    f"{_other_ledger_warning(name, elsewhere)}. Use that ledger, or pass "
                    "beside_other_ledgers=True"
                )
            with self._lock:
                self._open(create=True)
            status = self.transact(grant)
        _LOG.info("granted %s to %r, in %r", budget, name, self)
        if elsewhere:
            warn(_other_ledger_warning(name, elsewhere))
        return status

    def other_ledgers_with(self, name: str) -> list[str]:
        """Return where other ledgers of this home have a budget for a data set.

        Args:
            name: The data set.
        """
        return other_ledgers_with(self.home, name, self._known_identity())

    def raise_budget(self, name: str, budget: Budget, *, reason: str = "") -> BudgetStatus:
        """Raise the budget of a data set.

        From then on the larger budget is what protects the records, for earlier answers too.

        Args:
            name: The data set.
            budget: The new total, which must allow more than the current one.
            reason: Why; it is kept in the entry.

        Returns:
            The status of the raised budget.

        Raises:
            InvalidInput: If there is no such data set, the budget does not allow more, or it was
                closed.
        """
        if not isinstance(budget, Budget):
            raise InvalidInput(
                f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)"
            )
        check_name("name", name), reason and check_name("reason", reason)

        def grant(transaction: Transaction) -> BudgetStatus:
            account = transaction.books.account(name)
            _refuse_closed(account)
            terms = account.terms
            if terms.reserve >= budget.delta > 0.0:
                raise InvalidInput(
                    f"{budget}: expected a delta above the reserve of {terms.reserve:g} that is "
                    "set aside from it; raise delta"
                )
            if (budget.delta > 0.0) != (terms.order is not None):
                raise InvalidInput(
                    f"{budget}: a budget must stay with or without a delta; "
                    f"{name!r} has {terms.budget}"
                )
            granted = terms.budget
            if budget.epsilon <= granted.epsilon and budget.delta <= granted.delta:
                raise InvalidInput(
                    f"{budget} does not allow more than {granted}, the current budget of "
                    f"{name!r}; a budget can only be raised"
                )
            raised = replace(terms, budget=budget)
            if not terms.limit.within(raised.limit) or raised.limit == terms.limit:
                raise InvalidInput(
                    f"{budget} does not allow more than {terms.budget}, the current budget of "
                    f"{name!r}; a budget can only be raised"
                )
            if not (account.spent + account.beyond).within(raised.limit):
                raise InvalidInput(
                    f"{budget}: a head was released for the whole of {terms.budget}, which one "
                    "release alone uses better than several charges that are added up; once added "
                    f"up, it counts for more than {budget} allows; raise the budget further"
                )
            transaction.add(GRANT, account.name, about=raised.as_json(reason))
            return BudgetStatus.of(account)

        status = self.transact(grant)
        _LOG.info("raised the budget of %r to %s, in %r", name, budget, self)
        return status

    def close_budget(self, name: str, *, reason: str) -> BudgetStatus:
        """Close a budget for good: nothing more is charged to it.

        Recorded answers can still be asked for, free of charge. A closed budget cannot be raised,
        and its name cannot be used for another one.

        Args:
            name: The data set.
            reason: Why; it is kept in the entry.

        Raises:
            InvalidInput: If there is no such data set, or the budget was closed before.
        """
        check_name("name", name), check_name("reason", reason)

        def close(transaction: Transaction) -> BudgetStatus:
            account = transaction.books.account(name)
            _refuse_closed(account)
            transaction.add(CLOSE, account.name, about=json.dumps({"reason": reason}))
            return BudgetStatus.of(account)

        status = self.transact(close)
        _LOG.info("closed the budget of %r, in %r", name, self)
        return status

    def set_share(self, name: str, analyst: str, share: float) -> BudgetStatus:
        """Limit an analyst to a share of the budget.

        Analysts may collude, so the records are protected by the budget itself, not by the shares.

        Args:
            name: The data set.
            analyst: The analyst.
            share: The part of the budget that the analyst may spend, from 0 to 1.

        Returns:
            The status of the budget.

        Raises:
            InvalidInput: If there is no such data set, or the share is out of range.
        """
        part = as_float_or_nan(share)
        if not 0.0 <= part <= 1.0:
            raise InvalidInput(f"share={share!r}: expected a fraction of the budget, from 0 to 1")
        check_name("name", name), check_name("analyst", analyst)

        def grant(transaction: Transaction) -> BudgetStatus:
            account = transaction.books.account(name)
            who = account.analyst_named(analyst)
            transaction.add(SHARE, account.name, who, about=json.dumps({"share": part}))
            return BudgetStatus.of(account)

        return self.transact(grant)

    def status(self, name: str) -> BudgetStatus:
        """Return what was granted to a data set and spent from it.

        Args:
            name: The data set.

        Raises:
            InvalidInput: If it has no budget.
        """
        check_name("name", name)
        return self.transact(lambda transaction: BudgetStatus.of(transaction.books.account(name)))

    def names(self) -> list[str]:
        """Return the names of the data sets that have a budget, in alphabetical order."""
        return self.transact(lambda transaction: sorted(transaction.books.accounts))

    def entries(self) -> list[Entry]:
        """Return all entries, verified; `pages` takes less memory."""
        return [entry for page in self.pages() for entry in page]

    def pages(self, *, after: int = 0) -> Iterator[list[Entry]]:
        """Yield all entries, verified, in pages, up to the one that is the last at the beginning.

        Args:
            after: The number of the entry behind which to begin.

        Raises:
            TamperedLedger: If an entry is not what was written.

        Example:
            >>> import holdfast as hf
            >>> ledger = hf.Ledger("sqlite:///pages.db", home="keys of pages")
            >>> _ = ledger.create_budget("ward-7", hf.Budget(10.0, 1e-5), queries=1000)
            >>> sum(len(page) for page in ledger.pages())
            1
        """
        last, reader = self.transact(lambda transaction: (transaction.head, transaction.reader))
        assert self._key_store is not None
        key, start = self._key_store.key, Head()
        after = min(after, last.number)
        if 0 < (after := reader.index.last_up_to(after)) < last.number:
            entry = reader.entries_at([after], self._database.look_up_some, key)[after]
            start = Head(after, entry.seal)
        if after < last.number:
            yield from read_verified(self._database, reader, key, start, last.number, PAGE)

    def verify(self, *, progress: bool = False) -> int:
        """Read all entries again, check their seals and sums, and return their number.

        The sums of the latest checkpoint are compared with those of the entries, too.

        Args:
            progress: Whether to show a progress bar.

        Raises:
            TamperedLedger: If an entry or a checkpoint is not what was written.
        """
        with self._refuse_reentry(), self._lock:  # begin anew, without what was found before
            self._reader, self._verification = Reader(), RunningVerification()
        known, last, sums = self.transact(
            lambda work: (work.reader, work.head.number, json.dumps(work.books.as_dict()))
        )
        again, count = Reader(), 0
        assert self._key_store is not None
        key = self._key_store.key
        with progress_bar("verifying entries", last, progress) as on_progress:
            for page in read_verified(self._database, known, key, Head(), last, PAGE):
                for entry in page:
                    again.enter(entry)
                again.trim()
                count += len(page)
                if on_progress is not None:
                    on_progress(len(page))
        if json.loads(json.dumps(again.books.as_dict())) != json.loads(sums):
            raise TamperedLedger(
                "the sums of the checkpoint are not those of the entries; delete the rows of "
                "holdfast_checkpoints, and verify again"
            )
        return count

    def backup(self, path: str | PathLike[str]) -> int:
        """Write a backup that `hf.ledger.restore_backup` restores, while the ledger is in use.

        Args:
            path: The file to write; answers are masked in it, and only its owner can read it.

        Returns:
            The number of entries.

        Raises:
            InvalidInput: If the file cannot be written.
            TamperedLedger: If an entry is not what was written.

        Example:
            >>> import holdfast as hf
            >>> ledger = hf.Ledger("sqlite:///saved.db", home="keys of saved")
            >>> _ = ledger.create_budget("ward-7", hf.Budget(10.0, 1e-5), queries=1000)
            >>> ledger.backup("budgets.backup")
            1
        """
        return write_backup(self, path)

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
        reader = self._reader
        # While all entries are read again, the books of a new reader are not complete.
        return reader.books.find(name) if reader.complete else None

    def last_standing(
        self, name: str, analyst: str, questions: Sequence[str], tag: str = ""
    ) -> Standing | None:
        """Return what this process last knew of a request, without a transaction.

        It may be out of date: use it only as a hint. Recorded answers are read from the database.

        Args:
            name: The data set.
            analyst: Who asks.
            questions: The keyed hashes of the questions.
            tag: The tag of a request that may be retried; empty if it has none.

        Raises:
            TamperedLedger: If a recorded answer is not what was written.
            LedgerUnavailable: If it cannot be read.
        """
        reader, key_store = self._reader, self._key_store
        account = reader.books.find(name) if reader.complete else None
        if account is None or key_store is None:
            return None
        fetch = self._database.look_up_some
        return reader.standing(account, analyst, questions, tag, fetch, key_store.key)

    def analyst_named(self, name: str, analyst: str) -> str:
        """Return the analyst of a data set's account whom a name means, or a new name.

        Args:
            name: The data set.
            analyst: The name; names that differ only in how letters with accents are written are
                one analyst.

        Raises:
            InvalidInput: If it is a new name that is not valid.
        """
        account = self.last_known(name)
        if account is None:
            account = self.transact(lambda transaction: transaction.books.account(name))
        return account.analyst_named(analyst)


def _refuse_closed(account: Account) -> None:
    if account.closed:
        raise InvalidInput(
            f"the budget of {account.name!r} was closed for good (reason: {account.closed})"
        )


def _other_ledger_warning(name: str, places: Sequence[str]) -> str:
    return (
        f"the data set {name!r} has a budget in another ledger, too: {', '.join(places)}. "
        "Budgets of two ledgers add up: what protects the records is their sum"
    )
