"""One worker process: its predictor, the queue of requests, and practice answers.

Analysts take turns, so that one who asks very much delays the others by no more than a batch.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import anyio

from ..errors import BudgetExhausted, HoldfastError, InvalidInput, LedgerUnavailable, RateLimited
from ..heads.released import ReleasedHead
from ..ledger import BudgetStatus, Entry, Ledger
from ..ledger.accounts import Account
from ..ledger.transaction import Transaction
from ..loading import load
from ..models import CertifiedModel
from ..preprocessing.columns import Column
from ..serving import Answer, PredictionRequest, Preview, PrivatePredictor
from .access import Authentication, Principal, RateLimits
from .middleware import Metrics
from .settings import ServiceSettings

REFUSALS: dict[str, HoldfastError] = {
    "budget-exhausted": BudgetExhausted(
        "practice: example of a refusal because the budget is exhausted"
    ),
    "rate-limited": RateLimited("practice: this is what a rate limit looks like"),
    "ledger-unavailable": LedgerUnavailable("practice: this is what an outage looks like"),
}
"""The refusals that a client can ask for."""


class Practice:
    """Made-up answers.

    A label is a public hash of the query, so the same query gets the same label. The queries are
    checked against the public schema, as real ones are; no parameter of the model is used, and the
    budget is read only at the start. Every request finds it as large as it was then granted.
    """

    def __init__(self, predictor: PrivatePredictor) -> None:
        self._predictor = predictor
        self._each = predictor.cost_of_answer()
        self._limit = predictor.ledger.status(predictor.model.dataset).limit

    def answers(self, queries: Any) -> list[Answer]:
        """Return made-up answers, with the costs that new answers would have."""
        rows = self._rows(queries)
        if self._each * len(set(rows)) > self._limit:
            raise BudgetExhausted(f"practice: {len(set(rows))} answers are more than the budget")
        left, answers, seen = self._limit, [], set[bytes]()
        for row in rows:
            cost = 0.0 if row in seen else self._each
            seen.add(row)
            left -= cost
            digest = hashlib.sha256(row).digest()
            index = int.from_bytes(digest[:8]) % self._predictor.model.classes
            answers.append(Answer(self._predictor.label_of(index), index, cost, max(0.0, left)))
        return answers

    def preview(self, queries: Any) -> Preview:
        """Return what the queries would cost from a new budget."""
        new, fits = len(set(self._rows(queries))), int(self._limit / self._each)
        return Preview(self._each * new, new, self._limit, fits)

    def refuse(self, kind: str) -> None:
        """Raise the refusal of this name, as a real one would be raised.

        Raises:
            InvalidInput: If there is no such refusal.
        """
        if kind not in REFUSALS:
            raise InvalidInput(f"refuse={kind[:50]!r}: expected one of {', '.join(REFUSALS)}")
        raise REFUSALS[kind]

    def _rows(self, queries: Any) -> list[bytes]:
        return [row.tobytes() for row in self._predictor.features_of(queries)[0].numpy()]


_MOST_TOGETHER = 256  # queries that are answered together, unless one request alone has more
_SMALL = 64  # queries of a request that need not wait behind large ones


class _Waiting(NamedTuple):
    request: PredictionRequest
    queries: int
    outcome: asyncio.Future[list[Answer]]


class Batcher:
    """Answers requests in two threads, together with others that wait at the same time.

    One thread takes small requests only, so that they never wait behind a large one; while one
    thread waits for the disk, the other certifies.

    Args:
        predictor: What answers.
        most_waiting: The most queries of one analyst that may wait at a time.

    Guarantees:
        Each request is answered, charged or refused as if it had been made alone. A request whose
        client has gone is answered and recorded all the same.
    """

    def __init__(self, predictor: PrivatePredictor, most_waiting: int) -> None:
        self._predictor, self._most_waiting = predictor, most_waiting
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()  # the next analyst first
        self._counts: dict[str, int] = {}  # queries that wait, per analyst
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._run, args=(small,), name=f"answers-{small}")
            for small in (True, False)
        ]
        for thread in self._threads:
            thread.start()

    async def ask(self, request: PredictionRequest, queries: int) -> list[Answer]:
        """Return the answers to a request with this number of queries.

        Raises:
            RateLimited: If too many queries of this analyst are waiting.
        """
        outcome: asyncio.Future[list[Answer]] = self._loop.create_future()
        with self._changed:
            count = self._counts.get(request.analyst, 0)
            if count and count + queries > self._most_waiting:
                raise RateLimited(
                    f"{count} queries of yours are waiting already; nothing was answered or "
                    "charged; wait for their answers first"
                )
            self._counts[request.analyst] = count + queries
            line = self._waiting.setdefault(request.analyst, deque())
            line.append(_Waiting(request, queries, outcome))
            self._changed.notify_all()
        return await asyncio.shield(outcome)

    def close(self) -> None:
        """Answer all that is waiting, then end the threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, small: bool) -> None:
        while together := self._next(small):
            try:
                outcomes = self._predictor.ask_together([each.request for each in together])
            except Exception as error:
                outcomes = [_as_holdfast_error(error)] * len(together)
            self._loop.call_soon_threadsafe(_deliver, together, outcomes)

    def _next(self, small: bool) -> list[_Waiting]:
        """Wait for requests, and return those to answer together; none at the end."""
        with self._changed:
            while not (found := self._take(small)) and not self._ended:
                self._changed.wait()
            return found

    def _take(self, small: bool) -> list[_Waiting]:
        """Take requests in turns, one of each analyst at a time."""
        together: list[_Waiting] = []
        room = _MOST_TOGETHER
        progress = True
        while progress and room > 0:
            progress = False
            for analyst in list(self._waiting):
                line = self._waiting[analyst]
                size = line[0].queries
                if (small and size > _SMALL) or (together and size > room):
                    continue
                together.append(line.popleft())
                room -= size
                self._counts[analyst] -= size
                progress = True
                self._waiting.move_to_end(analyst)
                if not line:
                    del self._waiting[analyst], self._counts[analyst]
        return together


def _as_holdfast_error(error: Exception) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    # Whether the charges were stored is unknown, as after a lost connection.
    unknown = LedgerUnavailable(f"unexpected {type(error).__name__}")
    unknown.__cause__ = error
    return unknown


def _deliver(together: list[_Waiting], outcomes: list[list[Answer] | HoldfastError]) -> None:
    for each, outcome in zip(together, outcomes, strict=True):
        if each.outcome.cancelled():
            continue
        if isinstance(outcome, HoldfastError):
            each.outcome.set_exception(outcome)
        else:
            each.outcome.set_result(outcome)


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
