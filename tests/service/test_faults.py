"""Faults under load: nothing is answered uncharged or charged twice, and the service recovers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast as hf

from ..ledger.server import Server, find_binaries
from .parts import NAME, ROW, ServiceProcess

Figures = dict[str, str]


class Load:
    """Clients that ask one query after another, as fast as they can, and note every answer."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.found: dict[str, dict[int, Any]] = {analyst: {} for analyst in keys}
        self.errors: list[BaseException] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(url, analyst, key))
            for analyst, key in keys.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def answers(self) -> int:
        return sum(map(len, self.found.values()))

    def wait_for_more(self, count: int, seconds: float = 300.0) -> None:
        """Wait until so many more answers have come."""
        wanted, end = self.answers + count, time.monotonic() + seconds
        while self.answers < wanted:
            assert time.monotonic() < end, f"only {self.answers} of {wanted} answers came"
            assert not self.errors, self.errors
            time.sleep(0.02)

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def _ask(self, url: str, analyst: str, key: str) -> None:
        try:
            with hf.Client(url, key, retries=40, timeout=20) as client:
                number = 0
                while not self._ended.is_set():
                    self.found[analyst][number] = client.ask(_row(number))
                    number += 1
        except BaseException as error:
            self.errors.append(error)


def _row(number: int) -> dict[str, Any]:
    return {**ROW, "pulse": 50 + number / 64}


def _check(ledger: hf.Ledger, url: str, keys: dict[str, str], load: Load) -> int:
    """Check that every answer is charged exactly once; return how many were received."""
    entries = [entry for entry in ledger.entries() if entry.kind == "answer"]
    assert max(Counter((entry.analyst, entry.question) for entry in entries).values()) == 1
    charged = Counter(entry.analyst for entry in entries)
    assert charged == {analyst: len(found) for analyst, found in load.found.items()}
    spent = sum(int(entry.loss) for entry in entries)
    assert spent == int(entries[0].loss) * len(entries)
    for analyst, key in keys.items():
        with hf.Client(url, key) as client:
            numbers = list(load.found[analyst])
            again = client.ask([_row(number) for number in numbers[-500:]])
            assert [each.cost for each in again] == [0.0] * len(again)
            for number, each in zip(numbers[-500:], again, strict=True):
                assert each.label == load.found[analyst][number].label
                assert load.found[analyst][number].cost > 0.0  # also if it was a retry
    return load.answers


def _prepared(address: str, home: Path) -> tuple[hf.Ledger, dict[str, str]]:
    ledger = hf.Ledger(address, home=home)
    ledger.create_budget(NAME, hf.Budget(5.0, 1e-6), queries=50_000)
    return ledger, {name: hf.ledger.add_key(ledger, NAME, name) for name in ("ada", "bob", "eve")}


OPTIONS = ("--response-step", "0", "--answers-per-minute", "0", "--workers", "2")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    server: Server = request.getfixturevalue("postgres")
    return server.database(f"faults{os.getpid()}_{time.monotonic_ns()}")


def _kill_workers(times: int, address: str, model: Path, folder: Path, figures: Figures) -> None:
    ledger, keys = _prepared(address, folder / "home")
    with ServiceProcess(model, address, *OPTIONS, home=folder / "home") as service:
        load = Load(service.url, keys)
        for _ in range(times):
            load.wait_for_more(30)
            os.kill(random.choice(service.workers()), signal.SIGKILL)
        load.wait_for_more(100)
        load.stop()
        received = _check(ledger, service.url, keys, load)
    kind = address.partition(":")[0]
    figures[f"{times} workers killed, {kind}"] = f"{received} answers, each charged exactly once"
    ledger.close()


def test_workers_are_killed(
    address: str, model_file: Path, tmp_path: Path, figures: Figures
) -> None:
    _kill_workers(2, address, model_file, tmp_path, figures)


@pytest.mark.slow
def test_workers_are_killed_twenty_times(
    address: str, model_file: Path, tmp_path: Path, figures: Figures
) -> None:
    _kill_workers(20, address, model_file, tmp_path, figures)


def test_workers_are_replaced_at_once(model_file: Path, tmp_path: Path) -> None:
    """Neither a worker that cannot respond nor one that is starting delays the others."""
    ledger, keys = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    with ServiceProcess(model_file, ledger.address, *OPTIONS, home=tmp_path / "home") as service:
        stopped, other = service.workers()
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(2.0)  # a parent that waits for its response waits by now
        seen = {stopped, other}
        for worker in (stopped, other):
            os.kill(worker, signal.SIGKILL)
        for _ in range(2):  # the second time, they are killed before they have started
            _wait(lambda: len(set(service.workers()) - seen) == 2)
            new = service.workers()
            seen.update(new)
            for worker in new:
                os.kill(worker, signal.SIGKILL)
        with hf.Client(service.url, keys["ada"], retries=40, timeout=20) as client:
            assert client.ask(ROW).cost > 0.0
    ledger.close()


def test_what_keeps_a_worker_from_starting_ends_no_other(model_file: Path, tmp_path: Path) -> None:
    """Too many open files, a metrics folder that was removed, a ledger that is away."""
    ledger, keys = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    ledger.close()
    options = {"home": tmp_path / "home", "environment": {"TMPDIR": str(tmp_path)}}
    with (
        ServiceProcess(model_file, ledger.address, *OPTIONS, **options) as service,
        hf.Client(service.url, keys["ada"], retries=40, timeout=20) as client,
    ):
        pid, (killed, other) = service.process.pid, service.workers()
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, hard))
        os.kill(killed, signal.SIGKILL)
        _wait(lambda: "a worker cannot be started" in service.log.read_text())
        assert service.workers() == [other]
        assert client.ask(ROW).cost > 0.0
        (folder,) = tmp_path.glob("holdfast-metrics-*")
        shutil.rmtree(folder)
        (tmp_path / "ledger.db").rename(tmp_path / "away.db")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        _wait(lambda: "this worker cannot serve: " in service.log.read_text(), 120.0)
        (tmp_path / "away.db").rename(tmp_path / "ledger.db")
        os.kill(other, signal.SIGKILL)
        assert client.ask(_row(1)).cost > 0.0
        lines = service.log.read_text().splitlines()
        assert all(line.startswith("{") for line in lines if "worker" in line and NAME not in line)


def test_a_worker_that_does_not_end_is_killed(model_file: Path, tmp_path: Path) -> None:
    """At once, by a second signal; otherwise after 25 seconds."""
    ledger, _ = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    with ServiceProcess(model_file, ledger.address, *OPTIONS, home=tmp_path / "home") as service:
        os.kill(service.workers()[0], signal.SIGSTOP)
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(3)
        assert service.stop() == 0
        assert "is killed, because it does not end" in service.log.read_text()
    ledger.close()


def test_workers_end_with_their_parent(model_file: Path, tmp_path: Path) -> None:
    """Otherwise they would hold the port, and answer with a model that was replaced since."""
    ledger, _ = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    with ServiceProcess(model_file, ledger.address, *OPTIONS, home=tmp_path / "home") as service:
        assert not _is_free(service.port)
        service.process.kill()
        service.process.wait()
        _wait(lambda: _is_free(service.port))
    ledger.close()


def test_workers_that_are_starting_end_with_their_parent(model_file: Path, tmp_path: Path) -> None:
    """Also if they wait for the ledger, whose lock is held here until they have ended."""
    ledger, _ = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    with (
        ServiceProcess(model_file, ledger.address, *OPTIONS, home=tmp_path / "home") as service,
        ledger._key_store.queue.locked(),
    ):
        for worker in service.workers():
            os.kill(worker, signal.SIGKILL)
        _wait(lambda: len(_waiting_for_a_lock(service.workers())) == 2, 120.0)
        service.process.kill()
        service.process.wait()
        _wait(lambda: _is_free(service.port))
    ledger.close()


def _waiting_for_a_lock(processes: list[int]) -> list[int]:
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [pid for pid in processes if any("->" in line and str(pid) in line for line in lines)]


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture
def own_postgres(postgres: Server) -> Iterator[Server]:
    """Return a server that no other test uses, because it is going to crash."""
    binaries = find_binaries()
    assert binaries is not None
    server = Server(binaries)
    yield server
    server.stop()


def test_the_database_is_restarted(
    own_postgres: Server, model_file: Path, tmp_path: Path, figures: Figures
) -> None:
    address = own_postgres.database("restarted")
    ledger, keys = _prepared(address, tmp_path / "home")
    with ServiceProcess(model_file, address, *OPTIONS, home=tmp_path / "home") as service:
        load = Load(service.url, keys)
        for _ in range(3):
            load.wait_for_more(30)
            own_postgres.crash()
            assert _problem_of(service.url, keys["ada"]) == "/errors#ledger-unavailable"
            own_postgres.start()
        load.wait_for_more(100)
        load.stop()
        # The query above was refused while the database was down; it is not among the answers.
        received = _check(ledger, service.url, keys, load)
    figures["database crashed 3 times"] = f"{received} answers, each charged exactly once"
    ledger.close()


def _problem_of(url: str, key: str) -> str:
    """Return the type of the problem with which a new query is refused."""
    body = {"queries": [{**ROW, "age": 99}]}
    headers = {"Authorization": f"Bearer {key}"}
    response = httpx2.post(f"{url}/v1/predictions", json=body, headers=headers, timeout=30)
    assert response.status_code == 503, response.text
    return str(response.json()["type"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_disk_is_full(
    small_disk: Path, model_file: Path, tmp_path: Path, figures: Figures
) -> None:
    ledger, keys = _prepared(f"sqlite:///{small_disk}/ledger.db", tmp_path / "home")
    address = ledger.address
    with ServiceProcess(model_file, address, *OPTIONS, home=tmp_path / "home") as service:
        load = Load(service.url, keys)
        load.wait_for_more(50)
        ballast = small_disk / "ballast"
        refused = 0
        for _ in range(3):
            _fill(ballast)
            _wait(lambda: _is_refused(service.url, keys["ada"]))
            assert _problem_of(service.url, keys["ada"]) == "/errors#ledger-unavailable"
            refused += 1
            ballast.unlink()
            load.wait_for_more(30)
        load.stop()
        found = load.found["ada"]
        with hf.Client(service.url, keys["ada"]) as client:
            # Asked while the disk filled up, by `_is_refused`; they are charged once each, too.
            extra = [client.ask({**ROW, "age": 18 + number / 100}) for number in range(3)]
        entries = [entry for entry in ledger.entries() if entry.kind == "answer"]
        mine = [entry for entry in entries if entry.analyst == "ada"]
        assert len(mine) >= len(found) + len(extra)
        assert len({entry.question for entry in mine}) == len(mine)
        others = Counter(entry.analyst for entry in entries if entry.analyst != "ada")
        assert others == {name: len(load.found[name]) for name in ("bob", "eve")}
    figures["disk full"] = f"{refused} times; {load.answers} answers, each charged exactly once"
    ledger.close()


def _fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


_ASKED = iter(range(10**6))


def _is_refused(url: str, key: str) -> bool:
    body = {"queries": [{**ROW, "age": 18 + next(_ASKED) / 100}]}
    headers = {"Authorization": f"Bearer {key}"}
    return (
        httpx2.post(f"{url}/v1/predictions", json=body, headers=headers, timeout=30).status_code
        == 503
    )


def _wait(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_service_stops_gracefully(model_file: Path, tmp_path: Path) -> None:
    """Requests that are being answered when the signal comes are finished."""
    ledger, keys = _prepared(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "home")
    service = ServiceProcess(
        model_file, ledger.address, "--response-step", "2", home=tmp_path / "home"
    )
    with service:
        answers: list[httpx2.Response] = []

        def ask(key: str) -> None:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"queries": [ROW]}
            url = f"{service.url}/v1/predictions"
            answers.append(httpx2.post(url, json=body, headers=headers, timeout=30))

        threads = [threading.Thread(target=ask, args=(key,)) for key in keys.values()]
        for thread in threads:
            thread.start()
        _wait(lambda: ledger.status(NAME).answers == 3)
        assert service.stop() == 0
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [200] * 3
    ledger.close()
