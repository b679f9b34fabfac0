"""The Python client: the same answers as from the service, and retries that are charged once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import client as client_module
from holdfast.service import ServiceSettings

from .parts import NAME, ROW, ServiceThread, make_rows


class Site:
    def __init__(self, model: Path, folder: Path, ledger: hf.Ledger) -> None:
        self.ledger = ledger
        ledger.create_budget(NAME, hf.Budget(2.0), queries=20)
        self.key = hf.ledger.add_key(ledger, NAME, "ada")
        self.service = ServiceThread(ServiceSettings(str(model), ledger.address, response_step=0.0))

    @property
    def answers(self) -> int:
        return self.ledger.status(NAME).answers


@pytest.fixture
def site(model_file: Path, tmp_path: Path) -> Iterator[Site]:
    found = Site(model_file, tmp_path, hf.Ledger(f"sqlite:///{tmp_path}/ledger.db"))
    with found.service:
        yield found
    found.ledger.close()


@pytest.fixture
def client(site: Site) -> Iterator[hf.Client]:
    with hf.Client(site.service.url, site.key) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.time, "sleep", lambda seconds: None)


def test_one_query_gives_one_answer_and_several_a_list(client: hf.Client, site: Site) -> None:
    answer = client.ask(ROW)
    assert answer.label in ("home", "stays")
    assert (answer.cost, answer.remaining) == (0.1, 1.9)
    several = client.ask([ROW, {**ROW, "age": 20}])
    assert [each.cost for each in several] == [0.0, 0.1]
    assert several[0].label == answer.label
    columns = {name: [cell, cell] for name, cell in ROW.items()}
    assert [each.label for each in client.ask(columns)] == [answer.label] * 2
    assert client.preview([ROW, {**ROW, "age": 21}]) == hf.serving.Preview(0.1, 1, 1.8, 18)
    assert client.budget()["answers"] == 2
    assert client.model()["classes"] == ["home", "stays"]
    assert client.statement()["dataset"] == NAME
    assert site.answers == 2


def test_tables_send_the_columns_of_the_schema_alone(client: hf.Client, site: Site) -> None:
    table = {**make_rows(4, 9), "name": ["Ada", "Bob", "Eve", "Zoë"]}
    table["pulse"][2] = None
    labels = [
        [answer.label for answer in client.ask(frame)]
        for frame in (pd.DataFrame(table), pl.DataFrame(table), pa.table(table))
    ]
    assert labels[0] == labels[1] == labels[2]
    assert site.answers == 4


def test_rows_of_numbers_for_models_without_a_schema(tmp_path: Path) -> None:
    from ..ledger.parts import small_model

    small_model().save(tmp_path / "plain.holdfast")
    site = Site(tmp_path / "plain.holdfast", tmp_path, hf.Ledger(f"sqlite:///{tmp_path}/plain.db"))
    with site.service, hf.Client(site.service.url, site.key) as client:
        assert client.ask([0.5, 1.0]).cost == 0.1
        assert [each.cost for each in client.ask(np.array([[0.5, 1.0], [1.0, 1.0]]))] == [0.0, 0.1]
    site.ledger.close()


def test_practice_costs_nothing(site: Site) -> None:
    with hf.Client(site.service.url, site.key, practice=True) as client:
        assert client.ask(ROW).cost == 0.1
        assert client.preview(ROW).fits == 20
    assert site.answers == 0


def test_errors_are_those_of_the_library(client: hf.Client, site: Site) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="'ward', row 1: 'moon'.*request"):
        client.ask({**ROW, "ward": "moon"})
    with pytest.raises(hf.BudgetExhausted, match="21 new answers"):
        client.ask([{**ROW, "age": 20 + number} for number in range(21)])
    with (
        hf.Client(site.service.url, "hf-wrong") as wrong,
        pytest.raises(hf.errors.AccessDenied, match="not valid here"),
    ):
        wrong.ask(ROW)
    with pytest.raises(hf.errors.InvalidInput, match="expected https://"):
        hf.Client("http://answers.example.org", "x")
    with pytest.raises(hf.errors.InvalidInput, match="different lengths"):
        client.ask({"age": [1, 2], "pulse": [1]})
    with pytest.raises(hf.errors.InvalidInput, match="cannot be sent as JSON"):
        client.ask({**ROW, "age": float("inf")})
    assert site.answers == 0


def test_a_key_can_be_rotated_while_it_is_used(site: Site) -> None:
    with hf.Client(site.service.url, site.key) as client:
        new = client.rotate_key()
        assert new != site.key
        assert client.ask(ROW).cost == 0.1
    with hf.Client(site.service.url, site.key) as client:
        assert client.ask(ROW).cost == 0.0  # for a day
        with pytest.raises(hf.errors.InvalidInput, match="was replaced before"):
            client.rotate_key()
    keys = iter(["hf-wrong", new])
    with hf.Client(site.service.url, lambda: next(keys)) as client:
        with pytest.raises(hf.errors.AccessDenied):
            client.ask(ROW)
        assert client.ask(ROW).cost == 0.0
        with pytest.raises(hf.errors.InvalidInput, match="comes from a function"):
            client.rotate_key()
    hf.ledger.revoke_key(site.ledger, NAME, site.key.split("-")[1])  # and with it the new one
    with hf.Client(site.service.url, new) as client, pytest.raises(hf.errors.AccessDenied):
        client.ask(ROW)


class _LosesResponses(BaseHTTPRequestHandler):
    """A proxy that passes requests on and loses the first responses."""

    target, lost, seen = "", 2, []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = ("Authorization", "Idempotency-Key", "Content-Type")
        headers = {name: self.headers[name] for name in names}
        type(self).seen.append(headers["Idempotency-Key"])
        answer = httpx2.post(f"{self.target}{self.path}", content=body, headers=headers)
        if len(self.seen) <= self.lost:
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_lost_response_is_asked_for_again_and_charged_once(site: Site) -> None:
    handler = type("Handler", (_LosesResponses,), {"target": site.service.url, "seen": []})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        with hf.Client(f"http://127.0.0.1:{proxy.server_port}", site.key) as client:
            answer = client.ask(ROW)
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
    assert len(handler.seen) == 3
    assert len(set(handler.seen)) == 1
    assert answer.cost == 0.1  # as recorded, although it was the third attempt
    assert site.answers == 1


def test_a_service_that_is_gone_is_reported_after_all_retries(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", pauses.append)
    with hf.Client("http://127.0.0.1:1", site.key, retries=3) as client:
        with pytest.raises(hf.errors.ServiceUnavailable, match="no response of the service"):
            client.ask(ROW)
        assert len(pauses) == 3
        with pytest.raises(hf.errors.ServiceUnavailable):
            client.rotate_key()
    assert len(pauses) == 3  # a rotation is never repeated


def test_cells_of_numpy_and_pandas_are_sent(client: hf.Client) -> None:
    row = {**ROW, "age": np.int64(71), "pulse": np.float32("nan")}
    wanted = client.ask({**ROW, "age": 71, "pulse": None}).label
    frame = pd.DataFrame({"age": pd.array([71], "Int64"), "pulse": pd.array([pd.NA], "Int64")})
    frame = frame.assign(ward=ROW["ward"], admitted=ROW["admitted"])
    arrays = {name: np.array([cell]) for name, cell in row.items()}
    several = [client.ask([row])[0], *client.ask(frame), *client.ask(arrays)]
    several += [client.ask(row), client.ask(pd.Series(row)), client.ask(frame.iloc[0])]
    assert {answer.label for answer in several} == {wanted}
    assert [answer.cost for answer in several] == [0.0] * 6


def test_a_key_read_from_a_file_may_end_with_a_newline(site: Site) -> None:
    with hf.Client(site.service.url, f"{site.key}\n") as client:
        assert client.budget()["answers"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": ""}, "the key is empty"),
        ({"key": None}, "the key is empty"),
        ({"key": "a\x01b"}, "characters that no key has"),
        ({"key": "hf-\u00e9"}, "characters that no key has"),
        ({"retries": -1}, "retries=-1: expected a whole number, at least 0"),
        ({"retries": None}, "retries=None: expected"),
        ({"url": None}, "url=None: expected an address"),
        ({"url": "https://a\n"}, "expected an address"),
        ({"url": "http://answers.example.org"}, "expected https://"),
    ],
)
def test_odd_arguments_are_refused_before_anything_is_sent(arguments: dict, message: str) -> None:
    settings = {"url": "https://answers.example.org", "key": "hf-1", **arguments}
    with pytest.raises(hf.HoldfastError, match=message):
        hf.Client(settings.pop("url"), settings.pop("key"), **settings)


@pytest.mark.parametrize("queries", [5, None, "text", 2.5])
def test_queries_that_are_none_are_refused(client: hf.Client, queries: object) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="queries is a "):
        client.ask(queries)


@pytest.mark.parametrize("name", ["", "\u00e9", " x", "a\nb", "a" * 201, 5])
def test_odd_idempotency_keys_are_refused(client: hf.Client, name: Any) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="idempotency_key="):
        client.ask(ROW, idempotency_key=name)


def test_a_function_that_has_no_key_is_refused(site: Site) -> None:
    with (
        hf.Client(site.service.url, lambda: None) as client,  # type: ignore[arg-type,return-value]
        pytest.raises(hf.errors.AccessDenied, match="the key is empty"),
    ):
        client.budget()


def test_a_page_that_is_no_service_is_named(site: Site) -> None:
    with (
        hf.Client(f"{site.service.url}/sign-in?", site.key, retries=0) as client,
        pytest.raises(hf.errors.ServiceUnavailable, match="the address of a holdfast service"),
    ):
        client.budget()
