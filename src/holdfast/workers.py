"""Threads for work on private records: each keeps to itself and computes in the same float mode."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import torch

from .kernels import require_ieee


@contextmanager
def no_grad_no_autocast() -> Iterator[None]:
    """Compute without gradients, and without the caller's autocast, which would change what is computed."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Start as many threads as torch is allowed; inside each, torch runs on one.

    Raises:
        UnsoundBounds: In a thread whose float mode is not that of IEEE.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    everyone = Barrier(threads)  # no thread checks twice in place of another

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
