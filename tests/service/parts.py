"""A small hospital table, a model of it, and a service in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import numpy as np

import holdfast as hf
from holdfast.service.running import LimitedConnection

NAME = "ward-7"
SCHEMA = """\
classes = ["home", "stays"]

[columns.age]
range = [18, 100]

[columns.pulse]
range = [40, 180]
missing = "flag"

[columns.ward]
categories = ["surgery", "medicine", "stroke"]

[columns.admitted]
categories = ["planned", "emergency"]
other = true
"""
ROW = {"age": 71, "pulse": 88.5, "ward": "stroke", "admitted": "emergency"}


def make_rows(count: int, seed: int) -> dict[str, list[Any]]:
    """Return a made-up table with the column `outcome`."""
    random = np.random.default_rng(seed)
    age, pulse = random.uniform(20, 95, count).round(), random.uniform(50, 130, count).round(1)
    ward = random.choice(["surgery", "medicine", "stroke"], count)
    admitted = random.choice(["planned", "emergency"], count)
    score = (
        (age - 57) / 20 + (pulse - 90) / 40 + (ward == "stroke") + (admitted == "emergency") - 0.8
    )
    stays = random.uniform(0, 1, count) < 1 / (1 + np.exp(-3 * score))
    return {
        "age": age.tolist(),
        "pulse": pulse.tolist(),
        "ward": ward.tolist(),
        "admitted": admitted.tolist(),
        "outcome": ["stays" if each else "home" for each in stays],
    }


def as_csv(table: dict[str, list[Any]]) -> str:
    lines = [
        ",".join(table),
        *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
    ]
    return "\n".join(lines) + "\n"


def save_model(folder: Path, count: int = 3000) -> Path:
    """Train a linear head on the table, and save it."""
    (folder / "schema.toml").write_text(SCHEMA)
    rules, table = hf.Preprocessing.schema(folder / "schema.toml"), make_rows(count, 0)
    outcome = table.pop("outcome")
    model = hf.train_linear(
        table,
        rules.labels(outcome),
        hf.LinearRecipe.for_budget(
            records=count, features=9, classes=2, budget=hf.Budget(2.0, 1e-6), queries=1000
        ),
        classes=2,
        preprocessing=rules,
        dataset=NAME,
        progress=False,
    )
    model.save(folder / "model.holdfast")
    return folder / "model.holdfast"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def wait_until_ready(url: str, alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until a service can answer; fail if it is no longer alive.

    On a busy machine a service starts slowly.
    """
    end = time.monotonic() + 300.0
    while time.monotonic() < end:
        assert alive(), "the service has ended"
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url}: not ready after five minutes")


class ServiceProcess:
    """`holdfast serve` in a process group of its own."""

    def __init__(
        self,
        model: Path,
        ledger: str,
        *options: str,
        home: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "holdfast", "serve", str(model), "--ledger", ledger]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        if home is not None:
            environment["HOLDFAST_HOME"] = str(home)
        self.log = model.parent / f"service-{self.port}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *options],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "spawn_main"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(line) for line in found.stdout.split()]

    def stop(self) -> int:
        """Ask the service to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(180)  # 20 s for requests, and a busy machine
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise

    def __enter__(self) -> ServiceProcess:
        try:
            wait_until_ready(self.url, lambda: self.process.poll() is None)
        except BaseException:
            print(self.log.read_text())
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.stop()


class ServiceThread:
    """The same application on a port of its own, in a thread of this process; starts quickly."""

    def __init__(self, settings: hf.service.ServiceSettings) -> None:
        import uvicorn

        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        app = hf.service.create_app(settings)
        config = uvicorn.Config(app, port=port, log_level="warning", http=LimitedConnection)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> ServiceThread:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
