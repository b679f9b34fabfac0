"""Threads with a checked float mode, a limit of one thread for queries, and progress bars."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import torch

from .kernels import require_ieee


@contextmanager
def no_grad_no_autocast() -> Iterator[None]:
    """Disable gradients and the caller's autocast, which would change the results."""
    with (
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Start as many threads as torch may use; inside each, torch uses a single thread.

    Raises:
        UnsoundBounds: If the float mode of a thread is not that of IEEE arithmetic.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    everyone = Barrier(threads)  # so that every thread runs the check once

    def check() -> None:
        everyone.wait()
        require_ieee()

    try:
        for done in [pool.submit(check) for _ in range(threads)]:
            done.result()
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


class _OneThread:
    """Limits torch to one thread from the first caller that enters to the last one that leaves."""

    def __init__(self) -> None:
        self._before = torch.get_num_threads()
        self.reset()

    def reset(self) -> None:
        """Reset the state, for a forked child in which no caller is inside."""
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_num_threads()
                torch.set_num_threads(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.set_num_threads(self._before)


ONE_THREAD = _OneThread()
os.register_at_fork(after_in_child=ONE_THREAD.reset)


ProgressCallback = Callable[[int], None]
"""A function that is called with the amount of work just done."""


@contextmanager
def progress_bar(description: str, total: int, show: bool) -> Iterator[ProgressCallback | None]:
    """Show a progress bar on the terminal; yield None if `show` is false."""
    if not show:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
