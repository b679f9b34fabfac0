"""Batching: requests that arrive together share one certification and one ledger turn.

Analysts take turns, so that one who asks very much delays the others by no more than a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from typing import NamedTuple

from ..errors import HoldfastError, LedgerUnavailable, RateLimited
from ..serving import Answer, PredictionRequest, PrivatePredictor

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
