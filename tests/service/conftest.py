"""A saved model for all tests of the service, and an application in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import holdfast as hf
from holdfast.service import ServiceSettings, create_app

from .parts import NAME, save_model


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


class Served:
    """An application with ten answers of budget, a key of an analyst and one of the owner."""

    def __init__(self, model_file: Path, folder: Path, **settings: Any) -> None:
        self.address = f"sqlite:///{folder}/ledger.db"
        self.ledger = hf.Ledger(self.address)
        if NAME not in (self.ledger.names() if (folder / "ledger.db").exists() else []):
            self.ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
        self.key = hf.ledger.add_key(self.ledger, NAME, "ada")
        self.owner = hf.ledger.add_key(self.ledger, NAME, "olga", role="owner")
        self.settings = ServiceSettings(
            str(model_file), self.address, **{"response_step": 0.0, **settings}
        )
        self.app = create_app(self.settings)
        self.http = TestClient(self.app, raise_server_exceptions=False)

    def send(self, method: str, path: str, body: Any = None, key: str | None = None, **more: Any):
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        headers |= more.pop("headers", {})
        return self.http.request(method, path, json=body, headers=headers, **more)

    def ask(self, *rows: dict[str, Any], key: str | None = None, **more: Any) -> Any:
        return self.send("POST", "/v1/predictions", {"queries": list(rows)}, key, **more)

    @property
    def answers(self) -> int:
        return self.ledger.status(NAME).answers


@pytest.fixture
def serve(model_file: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that starts an application; further ones share its ledger."""
    opened: list[Served] = []

    def start(**settings: Any) -> Served:
        served = Served(model_file, tmp_path, **settings)
        served.http.__enter__()
        opened.append(served)
        return served

    yield start
    for served in opened:
        served.http.__exit__(None, None, None)
        served.ledger.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
