"""The state of one worker process, and the operations that routes call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import anyio

from ..errors import InvalidInput
from ..heads.released import ReleasedHead
from ..ledger import BudgetStatus, Entry, Ledger
from ..ledger.accounts import Account
from ..ledger.transaction import Transaction
from ..loading import load
from ..models import CertifiedModel
from ..preprocessing.columns import Column
from ..serving import Answer, PredictionRequest, Preview, PrivatePredictor
from .access import Authentication, Principal, RateLimits
from .batching import Batcher
from .middleware import Metrics
from .practice import Practice
from .settings import ServiceSettings

T = TypeVar("T")


def open_predictor(settings: ServiceSettings) -> PrivatePredictor:
    """Load the model and open the ledger.

    Raises:
        InvalidInput: If they do not fit together, or the file holds a released head.
        DamagedFile: If the model is damaged or not the one that was signed.
        LedgerUnavailable: If the ledger cannot be reached.
    """
    model = load(settings.model)
    if isinstance(model, ReleasedHead):
        raise InvalidInput(
            f"{settings.model}: this is a released head, which may be published and needs no "
            "budget: serve it like any other model, or use `holdfast ask`"
        )
    ledger = Ledger(settings.ledger, home=settings.home)
    return PrivatePredictor(model, ledger, require_signature=settings.require_signature)


class Runtime:
    """One worker: the predictor, who may ask, how often, and what is counted."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, self.predictor = settings, open_predictor(settings)
        self.authentication = Authentication(self.ledger, self.model.dataset, settings)
        self.limits = RateLimits(settings)
        self.practice = Practice(self.predictor)
        self.metrics = Metrics(self.ledger, self.model.dataset)
        self.unit = self.ledger.status(self.model.dataset).unit
        self._batcher: Batcher | None = None
        self._checked, self._check_lock = -math.inf, anyio.Lock()

    def start(self) -> None:
        """Start the threads that answer; called in the event loop."""
        self._batcher = Batcher(self.predictor, 2 * self.settings.max_queries)

    def stop(self) -> None:
        """Answer what is waiting, and close the ledger."""
        if self._batcher is not None:
            self._batcher.close()
        self.ledger.close()

    @property
    def model(self) -> CertifiedModel:
        return self.predictor.model

    @property
    def ledger(self) -> Ledger:
        return self.predictor.ledger

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the model's schema; none if it takes plain features."""
        rules = self.model.preprocessing
        return () if rules is None else rules.columns

    async def ask(
        self, principal: Principal, queries: Any, count: int, idempotency_key: str = ""
    ) -> list[Answer]:
        """Answer queries, after charging them, together with other requests that wait."""
        request = PredictionRequest(
            queries, principal.analyst, idempotency_key, self.limits.allow(principal)
        )
        assert self._batcher is not None
        answers = await self._batcher.ask(request, count)
        self.metrics.count_answers(len(answers))
        return answers

    async def preview(self, principal: Principal, queries: Any) -> Preview:
        """Return what queries would cost."""
        return await self.act(
            principal, lambda: self.predictor.preview(queries, analyst=principal.analyst)
        )

    async def act(self, principal: Principal, work: Callable[[], T]) -> T:
        """Do work in a thread; the principal's key is checked in each of its transactions."""

        def check(transaction: Transaction) -> None:
            principal.require_valid(transaction.books.account(self.model.dataset))

        def guarded() -> T:
            with self.ledger.guarded(check):
                return work()

        return await anyio.to_thread.run_sync(guarded)

    async def read(self, principal: Principal, look: Callable[[Account], T]) -> T:
        """Return what `look` finds in the account, if the principal's key is still valid."""
        dataset = self.model.dataset
        return await self.act(
            principal,
            lambda: self.ledger.transact(
                lambda transaction: look(transaction.books.account(dataset))
            ),
        )

    async def entries(self, principal: Principal, after: int, limit: int) -> list[Entry]:
        """Return entries of the model's data set, verified, in order.

        Args:
            principal: Who wants to see them.
            after: The number of the entry behind which to begin.
            limit: The most entries.
        """

        def read() -> list[Entry]:
            found: list[Entry] = []
            for page in self.pages(after):
                found += page
                if len(found) >= limit:
                    break
            return found[:limit]

        return await self.act(principal, read)

    def pages(self, after: int = 0) -> Iterator[list[Entry]]:
        """Yield all entries of the model's data set, verified, in pages; in a thread."""
        name = self.ledger.status(self.model.dataset).name
        for page in self.ledger.pages(after=after):
            yield [entry for entry in page if entry.dataset == name]

    async def status(self, principal: Principal) -> BudgetStatus:
        return await self.read(principal, BudgetStatus.of)

    async def check_ledger(self) -> None:
        """Raise an error if the ledger cannot be used; it is read at most once a second."""
        async with self._check_lock:
            if time.monotonic() - self._checked > 1.0:
                await anyio.to_thread.run_sync(self.ledger.status, self.model.dataset)
                self._checked = time.monotonic()

    def table(self, rows: list[Any]) -> Any:
        """Return queries as the predictor takes them: columns of cells, or rows of numbers.

        Raises:
            InvalidInput: If a row has other columns than the schema.
        """
        if not self.columns:
            if any(isinstance(row, Mapping) for row in rows):
                raise InvalidInput(
                    "queries: this model has no schema; expected lists of numbers, one per query"
                )
            return rows
        names = [column.name for column in self.columns]
        known = set(names)
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping) or row.keys() != known:
                raise InvalidInput(_wrong_columns(number, row, names))
        return {name: [row[name] for row in rows] for name in names}


def _wrong_columns(number: int, row: Any, names: list[str]) -> str:
    if not isinstance(row, Mapping):
        return f"queries.{number}: expected an object with the columns {', '.join(names)}"
    missing = [name for name in names if name not in row]
    unknown = [name for name in row if name not in names]
    what = f"has no column {missing[0]!r}" if missing else f"has an unknown column {unknown[0]!r}"
    return f"queries.{number} {what}: expected exactly the columns {', '.join(names)}"
