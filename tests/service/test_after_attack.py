"""What an attack on the service found: each of these once went wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.accounting.renyi import Amount
from holdfast.ledger.accounts import Account
from holdfast.preprocessing.tables import escape_formula
from holdfast.service import middleware, owner_pages, page_parts, runtime
from holdfast.serving import PredictionRequest

from .conftest import Served
from .parts import NAME, ROW

Start = Callable[..., Served]


def _sign_in(served: Served, key: str) -> str:
    """Sign in, and return the token that forms carry."""
    page = served.http.get("/sign-in").text
    token = page.partition('name="form" value="')[2].partition('"')[0]
    done = served.http.post("/sign-in", data={"key": key, "form": token})
    assert done.status_code == 200
    return done.text.partition('name="form" value="')[2].partition('"')[0]


def test_a_key_that_is_revoked_while_a_form_arrives_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, read = _sign_in(served, served.owner), owner_pages.read_form

    async def slow(request: Any) -> Any:
        form = await read(request)
        hf.ledger.revoke_key(served.ledger, NAME, served.owner.split("-")[1])
        return form

    before = served.ledger.verify()
    monkeypatch.setattr(owner_pages, "read_form", slow)
    data = {"form": token, "epsilon": "50", "delta": "0", "reason": "x"}
    done = served.http.post("/owner/budget/raise", data=data, follow_redirects=False)
    assert done.status_code in (303, 401)
    assert served.ledger.verify() == before + 1  # the revocation
    assert served.ledger.status(NAME).budget.epsilon == 1.0


def test_a_revoked_key_gets_nothing_from_metrics_and_practice(served: Served) -> None:
    assert served.ask(ROW, key=served.owner).status_code == 200
    for key in (served.key, served.owner):
        hf.ledger.revoke_key(hf.Ledger(served.address), NAME, key.split("-")[1])
    assert served.send("GET", "/metrics", key=served.owner).status_code == 401
    body = {"queries": [ROW]}
    for path in ("/v1/practice/predictions", "/v1/practice/predictions/preview"):
        assert served.send("POST", path, body).status_code == 401


class _SlowPredictor:
    """Answers each batch after a signal, and notes who was in it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Semaphore(0)

    def ask_together(self, requests: list[PredictionRequest]) -> list[list[hf.Answer]]:
        self.batches.append([request.analyst for request in requests])
        self.go.acquire()
        return [[hf.Answer(0, 0, 0.0, 0.0)] for _ in requests]


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def test_analysts_take_turns_and_small_requests_pass_large_ones() -> None:
    async def run() -> list[list[str]]:
        predictor = _SlowPredictor()
        batcher = runtime.Batcher(predictor, most_waiting=10_000)
        asks = [asyncio.ensure_future(batcher.ask(PredictionRequest(None, "flood"), 900))]
        await _until(lambda: len(predictor.batches) == 1)
        asks += [
            asyncio.ensure_future(batcher.ask(PredictionRequest(None, "flood"), 200))
            for _ in range(9)
        ]
        asks.append(asyncio.ensure_future(batcher.ask(PredictionRequest(None, "bob"), 1)))
        await _until(lambda: len(predictor.batches) == 2)
        for _ in range(12):
            predictor.go.release()
        await asyncio.gather(*asks)
        await asyncio.to_thread(batcher.close)
        return predictor.batches

    batches = asyncio.run(run())
    assert batches[:2] == [["flood"], ["bob"]]  # bob is served while the flood is
    assert sum(batch.count("flood") for batch in batches) == 10


def test_an_analyst_can_only_have_so_much_waiting() -> None:
    async def run() -> None:
        predictor = _SlowPredictor()
        batcher = runtime.Batcher(predictor, most_waiting=100)
        asks = [asyncio.ensure_future(batcher.ask(PredictionRequest(None, "ada"), 65))]
        await _until(lambda: len(predictor.batches) == 1)
        asks.append(asyncio.ensure_future(batcher.ask(PredictionRequest(None, "ada"), 90)))
        await asyncio.sleep(0.05)
        with pytest.raises(hf.errors.RateLimited, match="are waiting already"):
            await batcher.ask(PredictionRequest(None, "ada"), 90)
        for _ in range(9):
            predictor.go.release()
        await asyncio.gather(*asks)
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        b'{"queries": [' + b"1," * 900_000 + b"1]}",
        b'{"queries": [{' + b",".join(b'"%d":[]' % n for n in range(150_000)) + b"}]}",
        b'{"queries": [' + b"{}," * 600_000 + b"{}]}",
        b'{"queries": [[' + b"1," * 900_000 + b"1]]}",
    ],
    ids=["wrong rows", "wrong cells", "many rows", "long row"],
)
def test_a_body_with_many_errors_is_refused_at_the_first(served: Served, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {served.key}"}
    response = served.http.post("/v1/predictions", content=body, headers=headers)
    assert response.status_code == 422
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    ("content", "status", "charged"),
    [
        (b"age,pulse,ward,admitted,x,x\n71,88,stroke,planned,1,2\n", 200, 1),
        (b"age,pulse,ward,admitted,,\n71,88,stroke,planned,1,2\n", 200, 1),
        (b"age,pulse,ward,admitted" + b"," * 900_000 + b"\n", 422, 0),
        (b"age,age,pulse,ward,admitted\n71,71,88,stroke,planned\n", 422, 0),
        (b"\xef\xbb\xbfage,pulse,ward,admitted\n71,88,stroke,planned\n", 200, 1),
        (b"age,pulse,ward,admitted\n71,88,stroke,\x00\n", 200, 1),
        (b"\xff\xfe", 422, 0),
    ],
    ids=["same name", "no name", "many columns", "twice a column", "mark", "NUL", "not text"],
)
def test_odd_files_are_answered_or_refused_never_charged_for_an_error(
    served: Served, content: bytes, status: int, charged: int
) -> None:
    token = _sign_in(served, served.key)
    data = {"form": token, "action": "ask"}
    files = {"file": ("q.csv", content, "text/csv")}
    response = served.http.post("/", data=data, files=files)
    assert response.status_code == status, response.text[-2000:]
    assert served.answers == charged


@pytest.mark.parametrize("charset", ["undefined", "punycode", "utf-7", "unicode_escape", "latin-1"])
def test_forms_in_other_encodings_are_refused(served: Served, charset: str) -> None:
    field = b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\n\\ud800\xff\r\n--x--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    assert served.http.post("/sign-in", content=field, headers=headers).status_code == 422
    headers = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
    assert served.http.post("/sign-in", content=b"key=%ff", headers=headers).status_code == 422
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert served.http.post("/sign-in", content=field, headers=headers).status_code in (403, 422)


def test_a_slow_issuer_delays_nobody_with_a_key(serve: Start) -> None:
    asked, answered = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answered.wait(20)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    issuer = f"http://127.0.0.1:{server.server_port}"
    served = serve(oidc_issuer=issuer, oidc_audience="holdfast")
    options = {"key": "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.e30.AAAA"}
    forged = [threading.Thread(target=served.ask, args=(ROW,), kwargs=options) for _ in range(30)]
    for thread in forged:
        thread.start()
    assert served.ask(ROW).status_code == 200
    assert any(thread.is_alive() for thread in forged)  # it was answered while they waited
    answered.set()
    for thread in forged:
        thread.join()
    assert len(asked) == 1
    server.shutdown()
    server.server_close()


def test_a_clock_behind_counts_towards_the_latest_minute(served: Served) -> None:
    (account,) = served.app.state.runtime.ledger._reader.books.accounts.values()
    assert isinstance(account, Account)
    for minute in ("10:01", "10:00", "10:01", "10:00"):
        time_text = f"2096-01-01T{minute}:30"
        entry = hf.ledger.Entry(1, time_text, "answer", NAME, "zoe", question=minute)
        account._enter_answer(entry, 0, Amount())
    assert account.answers_since("zoe", "2096-01-01T10:00") == 4
    assert account.answers_since("zoe", "2096-01-01T10:01") == 4
    assert account.answers_since("zoe", "2096-01-01T10:02") == 0


def test_a_clock_that_was_far_ahead_blocks_nobody(served: Served) -> None:
    (account,) = served.app.state.runtime.ledger._reader.books.accounts.values()
    assert isinstance(account, Account)
    for time_text in ("2097-01-01T10:00:30", "2096-01-01T10:00:30", "2096-01-01T10:00:40"):
        entry = hf.ledger.Entry(1, time_text, "answer", NAME, "zoe", question=time_text)
        account._enter_answer(entry, 0, Amount())
    assert account.answers_since("zoe", "2096-01-01T10:00") == 2
    assert account.answers_since("zoe", "2096-01-01T10:01") == 0
    for number in range(40):  # two clocks that stay apart: each has a limit, and none is reset
        time_text = f"2096-01-01T1{number % 2}:30:30"
        entry = hf.ledger.Entry(1, time_text, "answer", NAME, "zoe", question=f"{number}")
        account._enter_answer(entry, 0, Amount())
    assert account.answers_since("zoe", "2096-01-01T10:30") == 20
    assert account.answers_since("zoe", "2096-01-01T11:30") == 20


def test_a_session_ends_eight_hours_after_the_sign_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a response that changes the session renews the age of the cookie."""
    _sign_in(served, served.key)
    monkeypatch.setattr(page_parts, "SESSION_SECONDS", 3600)  # the cookie itself lasts for longer
    assert "Ask" in served.http.get("/").text
    now = page_parts.time.time()
    monkeypatch.setattr(page_parts.time, "time", lambda: now + 3660)
    ended = served.http.get("/", follow_redirects=False)
    assert (ended.status_code, ended.headers["location"]) == (303, "/sign-in")


def test_a_previewed_file_can_be_asked_whatever_letters_it_holds(served: Served) -> None:
    """Letters beyond ASCII take six times as much room in a form that is not multipart."""
    token = _sign_in(served, served.key)
    content = "age,pulse,ward,admitted,note\n"
    content += f"71,88,stroke,planned,{'ü' * 900}\n" * 500
    files = {"file": ("q.csv", content.encode(), "text/csv")}
    page = served.http.post("/", data={"form": token, "action": "preview"}, files=files)
    assert page.status_code == 200
    shown = page.text.partition("Nothing was spent.")[2].partition("</form>")[0]
    assert '<form method="post" enctype="multipart/form-data">' in shown
    form = {"form": (None, token), "action": (None, "ask"), "content": (None, content)}
    assert served.http.post("/", files=form).status_code == 200
    assert served.answers == 1


def test_a_request_that_is_cancelled_gets_a_problem(served: Served) -> None:
    """As at the end of the grace period after a signal to stop."""
    sent: list[dict[str, Any]] = []

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    metrics = served.app.state.runtime.metrics
    settings = replace(served.settings, response_step=10.0)
    app = middleware.ServiceMiddleware(cancelled, settings, metrics)
    scope = {"type": "http", "method": "POST", "path": "/v1/predictions", "headers": []}
    with pytest.raises(asyncio.CancelledError):
        app(scope, receive, send).send(None)  # without the event loop: it may be busy until the end
    assert sent[0]["status"] == 503
    assert b"ledger-unavailable" in sent[1]["body"]


def test_the_owner_of_one_data_set_sees_its_entries_alone(served: Served) -> None:
    served.ledger.create_budget("clinic", hf.Budget(1.0))
    hf.ledger.add_key(served.ledger, "clinic", "carl")
    found = served.send("GET", "/v1/ledger", key=served.owner).json()
    assert {entry["dataset"] for entry in found["entries"]} == {NAME}
    _sign_in(served, served.owner)
    assert "carl" not in served.http.get("/owner/ledger.csv").text


def test_the_statement_names_no_analyst(served: Served) -> None:
    served.ledger.set_share(NAME, "bob", 0.25)
    text = served.send("GET", "/v1/statement").text
    assert "bob" not in text
    assert "| analysts with a share | 1;" in text


@pytest.mark.parametrize("queries", ["inf", "nan", "1e400", "2.5", "x", ""])
def test_odd_numbers_in_forms_are_refused(served: Served, queries: str) -> None:
    data = {"dataset": "ward-8", "epsilon": "1", "delta": "0", "neighbours": "add_remove"}
    data |= {"form": _sign_in(served, served.owner), "queries": queries}
    assert served.http.post("/owner/budget/create", data=data).status_code == 422


def test_where_another_ledger_is_stays_unknown(served: Served, tmp_path: Path) -> None:
    other = hf.Ledger(f"sqlite:///{tmp_path}/secret-place.db")
    other.create_budget("ward-8", hf.Budget(1.0))
    data = {"dataset": "ward-8", "epsilon": "1", "delta": "0", "neighbours": "add_remove"}
    data |= {"form": _sign_in(served, served.owner), "queries": "9"}
    page = served.http.post("/owner/budget/create", data=data)
    assert "another ledger of this owner" in page.text
    assert "secret-place" not in page.text


def test_no_redirect_names_a_host(served: Served) -> None:
    headers = {"Host": "evil.example.org"}
    response = served.http.get("/v1/budget/", headers=headers, follow_redirects=False)
    assert response.status_code == 404


def test_metrics_count_with_one_worker(served: Served) -> None:
    served.ask(ROW)
    text = served.send("GET", "/metrics", key=served.owner).text
    assert 'holdfast_requests_total{route="/v1/predictions",status="200"} 1.0' in text


@pytest.mark.parametrize("cell", [" =1+1", "\n=1", "\u00a0=1", "\uff1d1+1", "\t@x", "  +cmd"])
def test_cells_that_some_spreadsheets_calculate_are_escaped(cell: str) -> None:
    assert escape_formula(cell) == f"'{cell}"


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_a_form_of_a_stranger_is_small(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form that needs no session is refused at 8 kB; one of 2 MB took .4 s of the event loop."""
    parsed: list[int] = []
    real = page_parts._parse_form
    monkeypatch.setattr(
        page_parts, "_parse_form", lambda *given: parsed.append(len(given[1])) or real(*given)
    )
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    large = served.http.post(path, content=b"a=1&" * 2049, headers=headers)
    assert (large.status_code, parsed) == (413, [])

    def chunks() -> Iterator[bytes]:  # without an announced length
        for _ in range(100):
            yield b"a=1&" * 1000

    assert served.http.post(path, content=chunks(), headers=headers).status_code == 413
    assert parsed == []
    assert served.http.post(path, content=b"a=1&" * 2048, headers=headers).status_code == 403
    assert parsed == [8192]


def test_an_upload_is_parsed_outside_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, threads, loops = _sign_in(served, served.key), [], []
    read, parse = page_parts._read_body, page_parts._parse_form

    async def reading(*given: Any) -> bytes:
        loops.append(threading.get_ident())
        return await read(*given)

    def parsing(*given: Any) -> page_parts.Form:
        threads.append(threading.get_ident())
        return parse(*given)

    monkeypatch.setattr(page_parts, "_read_body", reading)
    monkeypatch.setattr(page_parts, "_parse_form", parsing)
    rows = ",".join(ROW) + "\n" + ",".join(map(str, ROW.values())) + "\n"
    files = {"file": ("q.csv", rows, "text/csv")}
    response = served.http.post("/", data={"form": token, "action": "ask"}, files=files)
    assert (response.status_code, served.answers) == (200, 1)
    assert len(threads) == len(loops) == 1
    assert threads != loops
