"""The interface of engines, the one that runs tasks in threads of this process, and their names.

Training cuts its work into tasks and combines their results in the order of the tasks. Sums over
records are exact, or are taken in a fixed order from the results, so what training returns does not
depend on the engine or on the number of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from ..errors import InvalidInput
from ..kernels import require_ieee
from ..workers import ProgressCallback, workers

T = TypeVar("T")
Covariant = TypeVar("Covariant", covariant=True)


@runtime_checkable
class Handle(Protocol[Covariant]):
    """A value that tasks can read wherever they run."""

    def get(self) -> Covariant:
        """Return the value."""


class Task(NamedTuple):
    """One piece of work: the arguments of a function, and the progress that it stands for."""

    arguments: tuple[Any, ...]
    amount: int


class Engine(ABC):
    """Where the work of training runs."""

    remote: bool
    """Whether tasks run in other processes, which cannot read this one's memory and files."""

    @property
    @abstractmethod
    def parallel(self) -> int:
        """The number of tasks that run at the same time."""

    @abstractmethod
    def share(self, value: T) -> Handle[T]:
        """Return a handle on a value, which tasks may hold as an argument."""

    @abstractmethod
    def run(
        self,
        function: Callable[..., T],
        tasks: Iterable[Task],
        on_progress: ProgressCallback | None,
    ) -> Iterator[T]:
        """Call a function once per task, and yield the results in the order of the tasks.

        Args:
            function: A function of a module, which takes a task's arguments and `on_progress`.
            tasks: The tasks.
            on_progress: Called with the amounts of work that are done.
        """

    @abstractmethod
    def run_here(self, function: Callable[..., T], *arguments: Iterable[Any]) -> Iterator[T]:
        """Map a function over arguments in this process."""

    @abstractmethod
    def close(self) -> None:
        """Make waiting threads raise, if the engine supports it."""


@dataclass(frozen=True)
class LocalHandle(Generic[T]):
    """A value of this process."""

    value: T

    def get(self) -> T:
        return self.value


class LocalEngine(Engine):
    """Runs tasks in threads of this process.

    Args:
        pool: The threads; see `workers`. Without them, tasks run in the thread that asks.
        parallel: Their number.
    """

    remote = False

    def __init__(self, pool: ThreadPoolExecutor | None, parallel: int) -> None:
        self._pool, self._parallel = pool, parallel

    @property
    def parallel(self) -> int:
        return self._parallel

    def share(self, value: T) -> Handle[T]:
        return LocalHandle(value)

    def run(
        self,
        function: Callable[..., T],
        tasks: Iterable[Task],
        on_progress: ProgressCallback | None,
    ) -> Iterator[T]:
        if self._pool is None:
            yield from (function(*task.arguments, on_progress) for task in tasks)
            return
        waiting: deque[Future[T]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(function, *task.arguments, on_progress))
            if len(waiting) > 2 * self.parallel:  # results that wait take memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def run_here(self, function: Callable[..., T], *arguments: Iterable[Any]) -> Iterator[T]:
        return (
            map(function, *arguments)
            if self._pool is None
            else self._pool.map(function, *arguments)
        )

    def close(self) -> None:
        """Do nothing: tasks in threads of this process always end."""


@contextmanager
def local_engine() -> Iterator[LocalEngine]:
    """Start the threads of a local engine, as many as torch may use; none, if that is one.

    Raises:
        UnsoundBounds: If the float mode of a thread is not that of IEEE arithmetic.
    """
    threads = torch.get_num_threads()
    require_ieee()  # small tasks run in this thread
    if threads == 1:
        yield LocalEngine(None, 1)
        return
    with workers() as pool:
        yield LocalEngine(pool, threads)


ENGINES = ("local", "ray")


def check_engine(name: Any) -> str:
    """Return the name of an engine; raise InvalidInput for any other."""
    if name not in ENGINES:
        raise InvalidInput(f"engine={name!r}: expected 'local' or 'ray'")
    return str(name)


@contextmanager
def open_engine(name: str) -> Iterator[Engine]:
    """Start the engine of a name, and end it afterwards.

    Raises:
        InvalidInput: If there is no such engine, or Ray is not installed.
        EngineUnavailable: If Ray cannot be started or reached.
        UnsoundBounds: If the float mode of a thread is not that of IEEE arithmetic.
    """
    if check_engine(name) == "local":
        with local_engine() as local:
            yield local
        return
    from .ray_engine import ray_engine

    with ray_engine() as cluster:
        yield cluster
