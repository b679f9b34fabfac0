"""Forks: a child must share neither a connection nor a lock with its parent."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from .ledger import Ledger

_LEDGERS: WeakSet[Ledger] = WeakSet()
_FORKING = threading.RLock()  # one thread at a time prepares a fork
_HELD: list[Ledger] = []


def prepare_for_forks(ledger: Ledger) -> None:
    """Close the ledger's connection before every fork of this process; the next use opens it again.

    SQLite's locks do not survive a fork, and a server speaks to one client.
    """
    _LEDGERS.add(ledger)


def _before_fork() -> None:
    _FORKING.acquire()
    for ledger in sorted(_LEDGERS, key=id):
        ledger._threads.acquire()
        ledger._settling.acquire()
        _HELD.append(ledger)
        if not ledger._taken:
            ledger._database.close()


def _after_fork_in_child() -> None:
    for ledger in _HELD:
        ledger._waiting.clear()  # the threads that wait are the parent's
        if ledger._safe is not None:
            ledger._safe.close()  # or the child would share the parent's locks, and keep them if the parent dies
    _after_fork()


def _after_fork() -> None:
    while _HELD:
        ledger = _HELD.pop()
        ledger._settling.release()
        ledger._threads.release()
    _FORKING.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
