"""The API: what it answers, what it charges, and what it never shows."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.ledger.database import Database
from holdfast.service import middleware
from holdfast.service.problems import ALL

from .conftest import Served
from .parts import NAME, ROW

OTHER = {**ROW, "age": 30}


def _problem(response: object, status: int, name: str) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"/errors#{name}"
    assert set(body) == {"type", "title", "status", "detail", "request_id"}
    assert body["request_id"] == response.headers["x-request-id"]
    return str(body["detail"])


def test_answers_have_names_and_costs_and_are_charged_once(served: Served) -> None:
    first = served.ask(ROW, OTHER, ROW).json()
    assert [answer["cost"] for answer in first["answers"]] == [0.1, 0.1, 0.0]
    assert {answer["label"] for answer in first["answers"]} <= {"home", "stays"}
    assert first["answers"][0] == {**first["answers"][2], "cost": 0.1}
    assert (first["cost"], first["remaining"], first["practice"]) == (0.2, 0.8, False)
    again = served.ask(ROW).json()
    assert (again["answers"][0]["label"], again["cost"]) == (first["answers"][0]["label"], 0.0)
    assert served.ask(ROW, key=served.owner).json()["cost"] == 0.1  # another analyst pays
    assert served.ledger.status(NAME).spent == 0.3


def test_a_preview_and_practice_spend_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = served.app.state.runtime.predictor

    def fail(*_: object) -> None:
        raise AssertionError("the private model was used")

    monkeypatch.setattr(predictor, "_certify", fail)
    monkeypatch.setattr(predictor, "ask_together", fail)
    body = {"queries": [ROW, OTHER, ROW]}
    preview = served.send("POST", "/v1/predictions/preview", body).json()
    assert (preview["cost"], preview["new"], preview["fits"]) == (0.2, 2, 10)
    assert preview["affordable"]
    assert not preview["practice"]
    practice = served.send("POST", "/v1/practice/predictions", body).json()
    again = served.send("POST", "/v1/practice/predictions", body).json()
    assert practice["practice"]
    assert again["answers"] == practice["answers"]
    assert [answer["cost"] for answer in practice["answers"]] == [0.1, 0.1, 0.0]
    found = served.send("POST", "/v1/practice/predictions/preview", body).json()
    assert (found["new"], found["fits"], found["practice"]) == (2, 10, True)
    assert served.answers == 0


@pytest.mark.parametrize(
    ("refusal", "status"),
    [("budget-exhausted", 403), ("rate-limited", 429), ("ledger-unavailable", 503)],
)
def test_refusals_can_be_tried_out_in_practice(served: Served, refusal: str, status: int) -> None:
    path = f"/v1/practice/predictions?refuse={refusal}"
    _problem(served.send("POST", path, {"queries": [ROW]}), status, refusal)
    wrong = served.send("POST", "/v1/practice/predictions?refuse=x", {"queries": [ROW]})
    assert "expected one of budget-exhausted" in _problem(wrong, 422, "invalid-input")


def test_practice_and_real_answers_have_the_same_shape(served: Served) -> None:
    real = served.ask(ROW).json()
    practice = served.send("POST", "/v1/practice/predictions", {"queries": [ROW]}).json()
    assert real.keys() == practice.keys()
    assert real["answers"][0].keys() == practice["answers"][0].keys()


def test_an_exhausted_budget_answers_all_or_none(served: Served) -> None:
    rows = [{**ROW, "age": age} for age in range(20, 31)]
    detail = _problem(served.ask(*rows), 403, "budget-exhausted")
    assert "11 new answers would cost 1.1" in detail
    assert served.answers == 0
    assert served.ask(*rows[:10]).status_code == 200
    _problem(served.ask(rows[10]), 403, "budget-exhausted")
    assert served.ask(rows[0]).json()["cost"] == 0.0


def test_a_retried_request_is_charged_once(served: Served) -> None:
    headers = {"Idempotency-Key": "order 66"}
    first, again = (served.ask(ROW, headers=headers).json() for _ in range(2))
    assert first["answers"] == again["answers"]
    assert first["cost"] == again["cost"] == 0.1
    detail = _problem(served.ask(OTHER, headers=headers), 422, "invalid-input")
    assert "idempotency key was used for other queries" in detail
    for wrong in ("", "x" * 201, "a\x7f"):
        _problem(served.ask(ROW, headers={"Idempotency-Key": wrong}), 422, "invalid-input")
    assert served.answers == 1


def test_the_budget_shows_others_to_the_owner_alone(served: Served) -> None:
    served.ask(ROW)
    mine = served.send("GET", "/v1/budget").json()
    assert (mine["epsilon"], mine["spent"], mine["your_spent"]) == (1.0, 0.1, 0.1)
    assert (mine["answers_left"], mine["by_analyst"]) == (9, None)
    served.ledger.set_share(NAME, "ada", 0.2)
    assert served.send("GET", "/v1/budget").json()["answers_left"] == 1
    theirs = served.send("GET", "/v1/budget", key=served.owner).json()
    assert theirs["by_analyst"]["ada"] == 0.1
    assert theirs["shares"] == {"ada": 0.2}


def test_the_model_shows_public_facts_alone(served: Served) -> None:
    facts = served.send("GET", "/v1/model").json()
    assert facts["classes"] == ["home", "stays"]
    assert [column["name"] for column in facts["columns"]] == list(ROW)
    assert facts["columns"][2]["categories"] == ["surgery", "medicine", "stroke"]
    text = json.dumps(facts)
    for private in ("weights", "accuracy", "distance_of", "labels", "count"):
        assert private not in text


def test_the_statement_has_the_fields_of_its_schema(served: Served, tmp_path: Path) -> None:
    text = served.send("GET", "/v1/statement")
    assert text.headers["content-type"].startswith("text/markdown")
    assert text.text.startswith("# Privacy statement: ward-7")
    path = Path(hf.__file__).parent / "serving" / "statement.schema.json"
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for way in ({"headers": {"Accept": "application/json"}}, {"params": {"format": "json"}}):
        facts = served.send("GET", "/v1/statement", **way).json()
        jsonschema.validate(facts, schema, jsonschema.Draft202012Validator)
        assert facts["privacy_loss"]["epsilon"] == 1.0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**facts, "accuracy": 1.0}, schema)
    _problem(served.send("GET", "/v1/statement?format=xml"), 422, "invalid-input")


def test_the_ledger_is_for_the_owner_and_verified(served: Served) -> None:
    served.ask(ROW, OTHER)
    _problem(served.send("GET", "/v1/ledger"), 403, "forbidden")
    found = served.send("GET", "/v1/ledger", key=served.owner).json()
    assert found["verified"]
    assert [entry["kind"] for entry in found["entries"]] == ["grant", "key", "key"] + ["answer"] * 2
    page = served.send("GET", "/v1/ledger?after=3&limit=1", key=served.owner).json()
    assert [entry["number"] for entry in page["entries"]] == [4]
    _problem(served.send("GET", "/v1/ledger?limit=0", key=served.owner), 422, "invalid-input")


def test_a_changed_ledger_is_never_answered_from(served: Served) -> None:
    served.ask(ROW)
    with sa.create_engine(served.address, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("UPDATE holdfast_entries SET loss = '0' WHERE kind = 'answer'"))
    detail = _problem(served.ask(OTHER), 503, "ledger-damaged")
    assert "sqlite" not in detail.lower()
    assert str(served.address.removeprefix("sqlite:///")) not in detail
    assert served.http.get("/readyz").status_code == 503
    assert served.http.get("/healthz").status_code == 200


def test_a_copy_that_lost_says_so_everywhere(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another copy of the ledger goes on; the service, its log, its page and doctor say so."""
    served.ask(ROW)
    token = re.search('name="form" value="([^"]+)"', served.http.get("/sign-in").text)[1]
    served.http.post("/sign-in", data={"form": token, "key": served.key})
    copy = tmp_path / "other" / "ledger.db"
    copy.parent.mkdir()
    with sqlite3.connect(tmp_path / "ledger.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    with monkeypatch.context() as patch:  # as if on another host
        patch.setattr(Database, "is_copy_of", lambda *_: False)
        hf.Ledger(f"sqlite:///{copy}").set_share(NAME, "ada", 0.5)
    caplog.clear()
    for response in (served.ask(OTHER), served.http.get("/readyz")):
        assert str(copy) not in _problem(response, 503, "ledger-copied")
    page = served.http.get("/", follow_redirects=False)
    assert (page.status_code, "Another copy of the ledger is in use" in page.text) == (503, True)
    assert len([each for each in caplog.messages if f"the ledger at {copy}" in each]) == 3
    done = CliRunner().invoke(app, ["doctor", "--ledger", served.address])
    assert done.exit_code == 2
    assert "this is a copy of the ledger at" in " ".join(done.output.split())


def test_a_released_head_is_not_served(serve: Callable[..., Served], tmp_path: Path) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="oidc_issuer"):
        serve(oidc_issuer="https://issuer.example.org")
    with pytest.raises(hf.errors.InvalidInput, match="response_step=-1"):
        serve(response_step=-1)


def test_a_signed_model_can_be_required(serve: Callable[..., Served], model_file: Path) -> None:
    with pytest.raises(hf.errors.HoldfastError, match="sign"):
        serve(require_signature=True)


def test_every_problem_is_explained(served: Served) -> None:
    text = served.http.get("/errors").text
    for problem in ALL:
        assert f'id="{problem.name}"' in text
    assert "POST /v1/predictions" in served.http.get("/reference").text


def test_metrics_are_for_the_owner_and_name_nobody(served: Served) -> None:
    served.ask(ROW)
    assert served.http.get("/metrics").status_code == 401
    assert served.send("GET", "/metrics").status_code == 403
    text = served.send("GET", "/metrics", key=served.owner).text
    assert "holdfast_answers_total 1.0" in text
    assert "holdfast_budget_spent_ratio 0.1" in text
    assert "ada" not in text
    assert "stays" not in text


def test_logs_hold_no_features_labels_or_keys(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    row = {"age": 61.375, "pulse": None, "ward": "medicine", "admitted": "xyzzy"}
    label = served.ask(row).json()["answers"][0]["label"]
    served.ask({**row, "ward": "xyzzy"}, headers={"Idempotency-Key": "plugh"})
    served.ask({**row, "age": "xyzzy"})
    served.http.post("/v1/predictions?q=xyzzy", content=b"xyzzy", headers={"X-Secret": "xyzzy"})
    records = [record for record in caplog.records if record.name.startswith("holdfast")]
    assert len(records) >= 4
    text = json.dumps([vars(record) for record in records], default=str)
    for secret in ("61.375", "xyzzy", "plugh", "medicine", f'"{label}"', served.key):
        assert secret not in text
    assert '"analyst": "ada"' in text


def test_an_unexpected_error_is_logged_without_its_message(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret 61.375")

    monkeypatch.setattr(served.app.state.runtime, "table", fail)
    detail = _problem(served.ask(ROW), 500, "internal")
    assert "secret" not in detail
    assert "ZeroDivisionError at" in caplog.text
    assert "61.375" not in caplog.text


def test_an_unexpected_error_while_answering_is_an_outage(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the charge was stored is unknown then, so the client is told to retry."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret 61.375")

    monkeypatch.setattr(served.app.state.runtime.predictor, "ask_together", fail)
    assert "61.375" not in _problem(served.ask(ROW), 503, "ledger-unavailable")


def test_stable_and_unstable_queries_take_the_same_work(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows certified and random numbers drawn, one request at a time."""
    predictor = served.app.state.runtime.predictor
    rows = [{"age": age, "pulse": 90, "ward": "surgery", "admitted": "planned"} for age in
            (18, 100, 71, 72, 73, 74)]  # fmt: skip
    table = {name: [row[name] for row in rows] for name in rows[0]}
    distances = predictor.model.certify(table).distances
    assert distances.max() > 50 * max(1, int(distances.min()))
    work: list[tuple[int, int]] = []
    certify, draws = predictor._certify, [0]

    class Counted:
        def draw(self) -> int:
            draws[0] += 1
            return 5

    monkeypatch.setattr(predictor, "_entropy", Counted())

    def counted(features: object) -> hf.Certificate:
        draws[0] = 0
        work.append((len(features), 0))
        return certify(features)

    monkeypatch.setattr(predictor, "_certify", counted)
    for number, row in enumerate(rows):
        assert served.ask(row).status_code == 200
        work[number] = (work[number][0], draws[0])
    assert set(work) == {(1, work[0][1])}
    assert work[0][1] > 0


def test_a_response_starts_at_a_multiple_of_the_step(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, clock = [], [100.0]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(middleware.asyncio, "sleep", sleep)
    served = serve(response_step=0.5)
    monkeypatch.setattr(middleware.time, "monotonic", lambda: clock[0])
    table = served.app.state.runtime.table

    def slow(rows: list[object]) -> object:
        clock[0] += 0.7
        return table(rows)

    monkeypatch.setattr(served.app.state.runtime, "table", slow)
    assert served.ask(ROW).status_code == 200
    assert served.ask({}).status_code == 422  # refusals are padded, too
    assert waits == pytest.approx([0.3, 0.3])
    assert served.http.get("/healthz").status_code == 200
    assert len(waits) == 2


def test_every_response_has_the_security_headers(served: Served) -> None:
    for path in ("/sign-in", "/v1/budget", "/nothing", "/static/page.css", "/errors"):
        headers = served.http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
