"""Ray gives the bits of the local engine, whatever its workers are, and survives their loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.engines import Task, open_engine, ray_engine
from holdfast.engines.ray_engine import run_task, software
from holdfast.records import store

from .parts import WIDTH, make_records, network, require_same_bits, write_files

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'holdfast[ray]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore:NOT private:holdfast.errors.HoldfastWarning"),
    # Ray itself opens files and processes that it does not close in time.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
QUIET: dict[str, Any] = {"progress": False}
Figures = dict[str, str]


@contextmanager
def _joined(workers: int) -> Iterator[None]:
    """Join a Ray of this machine with a number of workers."""
    ray.init(
        address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", object_store_memory=2**28,
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    with _joined(2):
        yield


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share records in many pieces; the real size would make it one."""
    monkeypatch.setattr(store, "SPOOL_ROWS", 97)


CASES: dict[str, dict[str, Any]] = {
    "add_remove": {"recipe": {"epochs": 2, "momentum": 0.9}},
    "batches": {"recipe": {"batches": 3}},
    "replace": {"neighbours": "replace"},
    "remove": {"neighbours": "remove"},
    "persons": {"persons": [f"p{number % 170}" for number in range(400)]},
    "public": {"public": make_records(40, seed=9)},
}


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize("case", CASES)
def test_networks(case: str) -> None:
    x, y = make_records(400)
    options = dict(CASES[case])
    recipe = hf.Recipe(batch_size=400, clip=0.1, **options.pop("recipe", {}))
    local = hf.train(network(), x, y, recipe, max_distance=4, **options, **QUIET)
    spread = hf.train(network(), x, y, recipe, max_distance=4, engine="ray", **options, **QUIET)
    require_same_bits(local, spread)


@pytest.mark.usefixtures("_ray")
def test_ensembles_heads_and_files(tmp_path: Path) -> None:
    x, y = make_records(400)
    write_files(tmp_path / "table", x, y)
    records = hf.Dataset.parquet(tmp_path / "table", label="y", classes=2)
    recipe = hf.Recipe(epochs=2, batch_size=130, clip=0.1)
    shared: dict[str, Any] = {"members": 3, "max_distance": 3, **QUIET}
    local = hf.train_ensemble(network, x, y, recipe, **shared)
    require_same_bits(local, hf.train_ensemble(network, x, y, recipe, engine="ray", **shared))
    streamed = hf.train_ensemble(network, records, recipe, engine="ray", **shared)
    require_same_bits(local, streamed)
    recipe, shared = hf.LinearRecipe(batch_size=400, travel=9.0, batches=2), {"classes": 2, **QUIET}
    head = hf.train_linear(x, y, recipe, **shared)
    require_same_bits(head, hf.train_linear(x, y, recipe, engine="ray", **shared))
    require_same_bits(head, hf.train_linear(records, recipe, engine="ray", **QUIET))


class _Sine(nn.Module):
    """A layer of the user's own."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sin(rows)


def _own_network() -> nn.Module:
    return nn.Sequential(_Sine(), network())


@pytest.mark.usefixtures("_ray")
def test_progress_checkpoints_and_own_classes(tmp_path: Path) -> None:
    x, y = make_records(300)
    recipe = hf.Recipe(epochs=2, batch_size=300)
    local = hf.train(_own_network(), x, y, recipe, max_distance=2, **QUIET)
    options: dict[str, Any] = {"max_distance": 2, "checkpoint": tmp_path / "kept", "engine": "ray"}
    spread = hf.train(_own_network(), x, y, recipe, **options, progress=True)
    require_same_bits(local, spread)
    options |= {"engine": "local", **QUIET}
    resumed = hf.train(_own_network(), x, y, recipe, **options)
    require_same_bits(local, resumed)


def _fails(number: int, on_progress: object) -> int:
    if number == 1:
        raise hf.errors.UnsoundBounds("crossed")
    if number == 2:
        raise KeyError("unexpected")
    return number


@pytest.mark.usefixtures("_ray")
def test_errors_of_tasks_are_raised_as_they_are() -> None:
    with open_engine("ray") as engine:
        assert list(engine.run(_fails, [Task((0,), 1)] * 3, None)) == [0, 0, 0]
        with pytest.raises(hf.errors.UnsoundBounds, match="crossed"):
            list(engine.run(_fails, [Task((1,), 1)], None))
        with pytest.raises(KeyError):
            list(engine.run(_fails, [Task((2,), 1)], None))
    assert ray.is_initialized()  # what was joined before is left alone


def test_a_worker_with_other_software_is_refused() -> None:
    assert run_task(software(), _fails, 0)
    with pytest.raises(hf.errors.EngineUnavailable, match="install the same versions"):
        run_task({**software(), "torch": "1.0"}, _fails, 0)


@pytest.mark.usefixtures("_ray")
def test_a_cluster_without_processors_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_PATIENCE", 0.5)
    monkeypatch.setattr(ray_engine, "_POLL", 0.1)
    with open_engine("ray") as engine:
        engine._submit = engine._submit.options(num_cpus=1000)  # which no node has
        monkeypatch.setattr(ray_engine, "_processors", lambda: 0)
        with pytest.raises(hf.errors.EngineUnavailable, match="no processor"):
            list(engine.run(_fails, [Task((0,), 1)], None))


@pytest.mark.usefixtures("_ray")
def test_a_closed_engine_lets_waiting_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_POLL", 0.1)
    with open_engine("ray") as engine:
        engine._submit = engine._submit.options(num_cpus=1000)
        threading.Timer(0.5, engine.close).start()
        with pytest.raises(hf.errors.EngineUnavailable, match="closed"):
            list(engine.run(_fails, [Task((0,), 1)], None))


def test_nothing_of_ray_is_imported_without_it() -> None:
    code = (
        "import sys, torch, holdfast as hf\n"
        "x, y = torch.randn(20, 2), torch.arange(20) % 2\n"
        "hf.train(torch.nn.Linear(2, 2), x, y, hf.Recipe(batch_size=20), max_distance=1)\n"
        "print('ray' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("False"), done.stderr


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    x, y = make_records(4)
    with pytest.raises(hf.errors.InvalidInput, match=r"pip install 'holdfast\[ray\]'"):
        hf.train(network(), x, y, hf.Recipe(batch_size=4), engine="ray", **QUIET)


# The rest starts Rays of its own, in a process of its own: two cannot live in one process.

_RUN = """
import sys, threading, warnings
warnings.simplefilter("ignore")
from tests.engines.test_ray import run_in_cluster
run_in_cluster(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


def _job(epochs: int) -> tuple[Any, ...]:
    x, y = make_records(3000)
    torch.manual_seed(0)
    hidden = (nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(64, 2))
    return model, x, y, hf.Recipe(epochs=epochs, batch_size=3000, clip=0.1)


DISABLED = {"RAY_AUTH_MODE": "disabled"}  # which is overruled


def run_in_cluster(kind: str, epochs: int, out: str) -> None:
    """Train on a Ray of some kind, and save the model; killed things are killed while it runs."""
    model, x, y, recipe = _job(epochs)
    options: dict[str, Any] = {"max_distance": 20, **QUIET}
    if kind.startswith("own"):  # the Ray that holdfast starts
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        tempfile.tempdir = str(folder)
        home = folder / "home"
        assert not [name for name in os.environ if name.startswith("RAY_AUTH")]
        os.environ |= {"HOME": str(home), **({} if kind == "own" else DISABLED)}
        with open_engine("ray"):
            (outer,) = folder.glob("hf-*")  # nobody else can enter it
            assert outer.stat().st_mode & 0o777 == 0o700
            _refuse_stranger(ray.get_runtime_context().gcs_address)
            hf.train(model, x, y, recipe, engine="ray", **options).save(out)
        assert not ray.is_initialized()
        assert list(folder.iterdir()) == []  # no token was written, either
        return
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(**node)
    os.environ["RAY_ADDRESS"] = cluster.address
    ended = threading.Event()
    killer = threading.Thread(target=_kill, args=(kind, cluster, second, ended))
    killer.start()
    try:
        hf.train(model, x, y, recipe, engine="ray", **options).save(out)
    finally:
        ended.set()
        killer.join()
        cluster.shutdown()


def _refuse_stranger(address: str) -> None:
    """Check that a process without the token cannot use a Ray, with or without authentication."""
    code = "import ray, sys; ray.init(sys.argv[1]); print('inside')"
    secret = ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")
    plain = {name: value for name, value in os.environ.items() if name not in secret}
    strangers = [
        subprocess.Popen(
            [sys.executable, "-c", code, address], text=True,
            env={**plain, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 64},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        for mode in ("disabled", "token")
    ]  # fmt: skip
    printed = [_until_refused(stranger) for stranger in strangers]
    time.sleep(8)  # Ray tries again and again
    for stranger, before in zip(strangers, printed, strict=True):
        with suppress(ProcessLookupError):
            os.killpg(stranger.pid, signal.SIGKILL)
        after, _ = stranger.communicate()
        assert "inside" not in before + after
        assert "uthenticat" in before, before  # it was this that kept it out


def _until_refused(stranger: subprocess.Popen[str]) -> str:
    """Return what a process prints until it speaks of authentication, or for two minutes."""
    assert stranger.stdout is not None
    late = threading.Timer(120, os.killpg, (stranger.pid, signal.SIGKILL))
    late.start()
    printed = ""
    while "uthenticat" not in printed and (line := stranger.stdout.readline()):
        printed += line
    late.cancel()
    return printed


@pytest.mark.usefixtures("_ray")
def test_a_closed_engine_gives_no_more_results() -> None:
    """However short its tasks are: otherwise an ensemble would train to its end after Ctrl-C."""
    engine = ray_engine.RayEngine()
    engine.close()
    with pytest.raises(hf.errors.EngineUnavailable, match="closed"):
        list(engine.run(_fails, [Task((0,), 1)] * 3, None))


def _kill(kind: str, cluster: Any, second: Any, ended: threading.Event) -> None:
    """Kill a worker that computes, or a node, once, while the run goes on."""
    if kind == "two nodes":
        return
    while not ended.is_set():
        time.sleep(0.02)
        busy = _pids("ray::run_task")
        if not busy:
            continue
        if kind == "worker":
            with suppress(ProcessLookupError):
                os.kill(busy[0], signal.SIGKILL)
        else:  # the raylet of the second node, and with it its workers
            for process in second.all_processes["raylet"]:
                process.process.send_signal(signal.SIGKILL)
        print("killed", flush=True)
        return


def _pids(title: str) -> list[int]:
    """Return the processes of Ray's workers that are running a task."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and title in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def _run_in_process(kind: str, epochs: int, out: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Other tests, and Ray itself, set variables in this process.
    environment = {name: value for name, value in environment.items() if name[:4] != "RAY_"}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, kind, str(epochs), str(out)],
        capture_output=True, text=True, timeout=500, env=environment,
        cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("kind", ["own", "own, open", "two nodes", "worker", "node"])
def test_other_clusters_and_lost_workers(kind: str, tmp_path: Path) -> None:
    """Rays of holdfast's own; two nodes; a worker and a node killed with -9."""
    epochs = 4 if kind in ("worker", "node") else 2
    model, x, y, recipe = _job(epochs)
    local = hf.train(model, x, y, recipe, max_distance=20, **QUIET)
    printed = _run_in_process(kind, epochs, tmp_path / "model.holdfast")
    require_same_bits(local, hf.load(tmp_path / "model.holdfast"))
    assert ("killed" in printed) == (kind in ("worker", "node"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["worker", "node"])
def test_ten_losses(kind: str, tmp_path: Path, figures: Figures) -> None:
    model, x, y, recipe = _job(4)
    local = hf.train(model, x, y, recipe, max_distance=20, **QUIET)
    killed = 0
    for number in range(10):
        out = tmp_path / f"{number}.holdfast"
        killed += "killed" in _run_in_process(kind, 4, out)
        require_same_bits(local, hf.load(out))
    assert killed == 10
    figures[f"Ray, a {kind} killed 10 times"] = "each run completed with the same bits"


def test_one_worker() -> None:
    """In a process of its own, since the number of processors belongs to a Ray."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from tests.engines.test_ray import _joined, _job, QUIET, hf, require_same_bits\n"
        "model, x, y, recipe = _job(1)\n"
        "local = hf.train(model, x, y, recipe, max_distance=5, **QUIET)\n"
        "with _joined(1):\n"
        "    one = hf.train(model, x, y, recipe, max_distance=5, engine='ray', **QUIET)\n"
        "require_same_bits(local, one)\n"
        "print('same')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2], timeout=300,
    )  # fmt: skip
    assert "same" in done.stdout, done.stderr[-4000:]
