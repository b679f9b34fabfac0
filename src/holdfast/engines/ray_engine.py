"""The engine that runs tasks on Ray: a local Ray that it starts, or a cluster.

Tasks are Ray's plain tasks. One whose worker or node is lost runs again, elsewhere; the values that
it reads are kept by this process, so nothing else is lost.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from ..errors import EngineUnavailable, HoldfastError, InvalidInput
from ..kernels import require_ieee
from ..version import __version__
from ..workers import ProgressCallback
from .engine import Engine, Handle, Task

Software = dict[str, str]


@cache
def software() -> Software:
    """Return the versions of everything that decides the bits of a result."""
    found = {name: version(name) for name in ("numba", "numpy", "torch")}
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    return {
        "holdfast": f"{__version__} with code {code.hexdigest()[:12]}",
        "python": platform.python_version(),
        **found,
    }


def run_task(expected: Software, function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return the pickled result of a function, computed in one thread.

    Raises:
        EngineUnavailable: If this worker has other versions than the driver.
        UnsoundBounds: If the float mode is not that of IEEE arithmetic.
    """
    here = software()
    if here != expected:
        name = next(name for name in expected if here[name] != expected[name])
        raise EngineUnavailable(
            f"a Ray worker has {name} {here[name]}, but this process has {expected[name]}: install "
            "the same versions on all nodes"
        )
    torch.set_num_threads(1)
    require_ieee()
    return pickle.dumps(function(*arguments, None), protocol=5)


T = TypeVar("T")

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
_TRIES = 30  # lost workers that one task survives
_MEMORY_TRIES = 5  # how often a task is tried again whose worker ran out of memory
_POLL = 2.0  # seconds between two checks of the cluster
_PATIENCE = 120.0  # seconds without any processor before an engine gives up


@dataclass(frozen=True)
class RayHandle(Generic[T]):
    """A value in Ray's object store."""

    reference: Any

    def get(self) -> T:
        import ray

        value: T = ray.get(self.reference)
        return value


class RayEngine(Engine):
    """Runs tasks on the Ray cluster that this process has joined."""

    remote = True

    def __init__(self) -> None:
        import ray

        self._ray, self._software = ray, software()
        self._submit = ray.remote(num_cpus=1, max_retries=_TRIES)(run_task)
        self._closed = threading.Event()

    @property
    def parallel(self) -> int:
        """The number of processors, which may change while a run goes on; at least 1."""
        return max(1, _processors())

    def share(self, value: T) -> Handle[T]:
        return RayHandle(self._ray.put(value))

    def run(
        self,
        function: Callable[..., T],
        tasks: Iterable[Task],
        on_progress: ProgressCallback | None,
    ) -> Iterator[T]:
        waiting: deque[tuple[Any, int]] = deque()
        most = 2 * self.parallel
        for task in tasks:
            reference = self._submit.remote(self._software, function, *task.arguments)
            waiting.append((reference, task.amount))
            if len(waiting) > most:
                yield self._result(*waiting.popleft(), on_progress)
        while waiting:
            yield self._result(*waiting.popleft(), on_progress)

    def run_here(self, function: Callable[..., T], *arguments: Iterable[Any]) -> Iterator[T]:
        return map(function, *arguments)

    def close(self) -> None:
        """Let all threads that wait for results end with an error."""
        self._closed.set()

    def _result(self, reference: Any, amount: int, on_progress: ProgressCallback | None) -> Any:
        """Wait for a result.

        Raises:
            HoldfastError: As the task did.
            EngineUnavailable: If the task was lost too often, or no processor is left.
        """
        seen = time.monotonic()
        while not self._ended(reference):
            if _processors():
                seen = time.monotonic()
            elif time.monotonic() - seen > _PATIENCE:
                raise EngineUnavailable(
                    f"the Ray cluster has had no processor for {_PATIENCE:g} s; add a node, and "
                    "start again, from the checkpoint if there is one"
                )
        try:
            found: bytes = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HoldfastError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise EngineUnavailable(
                f"a task was lost on Ray ({type(error).__name__}); if its workers ran out of "
                f"memory, use larger nodes or fewer processors per node ({error})"
            ) from error
        if on_progress is not None:
            on_progress(amount)
        return pickle.loads(found)

    def _ended(self, reference: Any) -> bool:
        """Return whether a task has ended, after a while at most; raise if the engine is closed."""
        if self._closed.is_set():
            raise EngineUnavailable("the engine was closed before its tasks had ended")
        return bool(self._ray.wait([reference], timeout=_POLL)[0])


def _processors() -> int:
    """Return the number of processors in the cluster."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 0))


@contextmanager
def ray_engine() -> Iterator[RayEngine]:
    """Join the cluster at RAY_ADDRESS, or start a local Ray that ends with the engine.

    If this process has joined a cluster already, that one is used, and left alone afterwards.

    Raises:
        InvalidInput: If Ray is not installed.
        EngineUnavailable: If Ray cannot be started or reached.
    """
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "engine='ray' needs Ray, which is not installed: pip install 'holdfast[ray]'"
        ) from None
    with _joined(ray):
        engine = RayEngine()
        try:
            yield engine
        finally:
            engine.close()


def _protect() -> None:
    """Let the Ray that is started next ask for a token that nobody else can read.

    Ray listens on all addresses of the machine, and whoever may submit a task reads the records. It
    asks for a token unless the environment says otherwise, but keeps it in a file that others can
    often read. A token that the user names in the environment is kept. The variables stay set after
    the run: a process has one token.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.pop("RAY_AUTH_MODE", None)
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

        AuthenticationTokenLoader.instance().reset_cache()  # a token that was read before


@contextmanager
def _joined(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    with ExitStack() as at_end:
        try:
            if address:
                ray.init(address=address, **_QUIET)
            else:
                _protect()
                # What Ray writes may hold records. It opens its own folder to everybody, so that
                # folder is inside one that only its owner can enter.
                outer = at_end.enter_context(
                    tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True)
                )
                # Without an address, Ray would join whatever cluster was started on this machine.
                ray.init(
                    "local",
                    include_dashboard=False,
                    _temp_dir=f"{outer}/ray",
                    _system_config={"task_oom_retries": _MEMORY_TRIES},
                    **_QUIET,
                )
        except Exception as error:
            where = f"the Ray at {address!r} cannot be reached" if address else "Ray cannot start"
            raise EngineUnavailable(
                f"{where} ({error}); if a path is too long, name a folder with a short one in "
                "TMPDIR"
            ) from error
        at_end.callback(ray.shutdown)
        yield
