"""One thread for torch while a query is certified: a service has many processes, whose threads would wait for one another."""

from __future__ import annotations

import os
import threading

import torch


class _OneThread:
    """The first one in sets torch to one thread, the last one out restores what was."""

    def __init__(self) -> None:
        self._before = torch.get_num_threads()
        self.reset()

    def reset(self) -> None:
        """Begin anew in a forked child, where nobody is inside."""
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
