"""Hostile input: no 5xx, nothing leaked, nothing charged for a rejected request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

import holdfast as hf

from .conftest import Served
from .parts import ROW

SQL = "'; DROP TABLE holdfast_entries; --"
BODIES: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"queries": [{"age": "\xff\xfe"}]}',
    "null": b"null",
    "list": b"[]",
    "no queries": b"{}",
    "no rows": b'{"queries": []}',
    "null row": b'{"queries": [null]}',
    "number row": b'{"queries": [1]}',
    "empty row": b'{"queries": [{}]}',
    "list row": b'{"queries": [[1, 2, 3]]}',
    "NaN": b'{"queries": [{"age": NaN, "pulse": 1, "ward": "stroke", "admitted": "planned"}]}',
    "Infinity": b'{"queries": [{"age": Infinity, "pulse": 1, "ward": "stroke", "admitted": "x"}]}',
    "overflow": b'{"queries": [{"age": 1e999, "pulse": 1, "ward": "stroke", "admitted": "x"}]}',
    "huge integer": b'{"queries": [{"age": 1%s, "pulse": 1, "ward": "stroke", "admitted": "x"}]}'
    % (b"0" * 5000),
    "nested cell": b'{"queries": [{"age": [1], "pulse": 1, "ward": "stroke", "admitted": "x"}]}',
    "wrong category": json.dumps({"queries": [{**ROW, "ward": "moon"}]}).encode(),
    "missing cell": json.dumps({"queries": [{**ROW, "age": None}]}).encode(),
    "long text": json.dumps({"queries": [{**ROW, "admitted": "x" * 2000}]}).encode(),
    "extra column": json.dumps({"queries": [{**ROW, "name": "Ada"}]}).encode(),
    "extra field": json.dumps({"queries": [ROW], "analyst": "eve"}).encode(),
    "SQL in a number": json.dumps({"queries": [{**ROW, "age": SQL}]}).encode(),
    "SQL in a category": json.dumps({"queries": [{**ROW, "ward": SQL}]}).encode(),
    "SQL as a column": json.dumps({"queries": [{**ROW, SQL: 1}]}).encode(),
    "deep lists": b'{"queries": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    "deep objects": b'{"queries": [' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
    "one bad row of many": json.dumps({"queries": [ROW] * 5 + [{**ROW, "age": "x"}]}).encode(),
    "too many rows": json.dumps({"queries": [ROW] * 1001}).encode(),
    "second body": json.dumps({"queries": [ROW]}).encode() * 2,
    "surrogate": b'{"queries": [{"age": "\\ud800", "pulse": 1, "ward": "a", "admitted": "x"}]}',
    "NUL": b'{"queries": [{"age": 1, "pulse": 1, "ward": "\\u0000missing", "admitted": "x"}]}',
}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/predictions",
        "/v1/predictions/preview",
        "/v1/practice/predictions",
        "/v1/practice/predictions/preview",
    ],
)
def test_malformed_bodies_are_refused_and_cost_nothing(served: Served, path: str) -> None:
    headers = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json"}
    for name, body in BODIES.items():
        response = served.http.post(path, content=body, headers=headers)
        assert response.status_code == 422, (name, response.text)
        problem = response.json()
        assert problem["type"] == "/errors#invalid-input"
        assert len(problem["detail"]) < 1000, name
        assert "Traceback" not in response.text
        assert "/src/" not in response.text
    assert served.answers == 0


def test_a_cell_that_only_looks_hostile_is_text(served: Served) -> None:
    """The column `admitted` takes any text: SQL in it is one more category."""
    assert served.ask({**ROW, "admitted": SQL}).status_code == 200
    assert served.answers == 1
    assert served.ledger.verify() == 4


def test_huge_bodies_are_refused_before_they_are_read(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.key}"}
    body = b'{"queries": [' + b" " * 3_000_000 + b"]}"
    for content in (body, iter([body[:1_500_000], body[1_500_000:]])):
        response = served.http.post("/v1/predictions", content=content, headers=headers)
        assert response.status_code == 413
        assert response.json()["type"] == "/errors#too-large"
    assert served.answers == 0


@pytest.mark.parametrize("value", [SQL, "a" * 300, "\x00", "é", "../../etc/passwd", "%0d%0aX: y"])
def test_every_field_takes_hostile_text(served: Served, value: str) -> None:
    raw = value.encode("utf-8")
    key = {"Authorization": f"Bearer {served.owner}"}
    for response in (
        served.http.get("/v1/budget", headers={"Authorization": b"Bearer " + raw}),
        served.http.get("/v1/ledger", params={"after": value}, headers=key),
        served.http.get("/v1/statement", params={"format": value}, headers=key),
        served.http.post(
            "/v1/practice/predictions",
            params={"refuse": value},
            headers=key,
            json={"queries": [ROW]},
        ),
        served.http.get(f"/v1/{value.replace(chr(0), '%00')}", headers=key),
        served.http.get("/owner", headers={"Cookie": b"holdfast=" + raw}, follow_redirects=False),
        served.http.post("/sign-in", data={"key": value, "form": value}),
    ):
        assert 300 <= response.status_code < 500, response.text
        assert "X: y" not in response.headers
    assert served.answers == 0
    assert served.ledger.verify() == 3


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "GET", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: Served, method: str) -> None:
    response = served.send(method, "/v1/predictions")
    assert response.status_code == 405
    assert response.json()["type"] == "/errors#not-accepted"


def test_a_model_without_a_schema_takes_numbers_alone(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    from ..ledger.parts import small_model

    small_model().save(tmp_path / "plain.holdfast")
    served = serve()
    served = type(served)(tmp_path / "plain.holdfast", tmp_path)
    with served.http:
        assert served.ask([0.5, 1.0], [1.0, 2.0]).json()["cost"] == 0.2
        for rows in (
            [ROW],
            [[1.0]],
            [[1.0, "x"]],
            [[[1.0, 2.0]]],
            [[1.0, 2.0], [1.0]],
            [[None, 1.0]],
            [[10**400, 1.0]],
            [[]],
            [{"0": 1.0}],
        ):
            response = served.ask(*rows)
            assert response.status_code == 422, (rows, response.text)
        for text in (b"[[NaN, 1]]", b"[[Infinity, 1]]", b"[[1e999, 1]]", b"[" * 5000 + b"]" * 5000):
            headers = {"Authorization": f"Bearer {served.key}"}
            body = b'{"queries": ' + text + b"}"
            assert served.http.post(
                "/v1/predictions", content=body, headers=headers
            ).status_code == 422  # fmt: skip
        assert served.answers == 2


def test_the_api_keeps_to_its_own_description(serve: Callable[..., Served]) -> None:
    """Schemathesis sends what the OpenAPI description allows, and what it does not."""
    served = serve()
    schema = schemathesis.openapi.from_asgi("/openapi.json", served.app)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.response_headers_conformance,
    ]
    seen: set[tuple[str, str, int]] = set()
    for result in schema.get_all_operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            strategy = result.ok().as_strategy(generation_mode=mode)
            _exercise(strategy, lambda case: _check_case(case, served, checks, seen))
    assert len({path for _, path, _ in seen}) >= 10
    assert {200, 422} <= {status for _, _, status in seen}


def _exercise(strategy: object, check_case: Callable[[object], None]) -> None:
    @settings(
        max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
        database=None,
    )  # fmt: skip
    @given(case=strategy)
    def run(case: object) -> None:
        check_case(case)

    with suppress(Unsatisfiable):  # an operation without parameters cannot be called wrongly
        run()


def _check_case(case: object, served: Served, checks: list[object], seen: set[object]) -> None:
    before = served.answers
    headers = {"Authorization": f"Bearer {served.owner}"}
    response = case.call(headers=headers)
    seen.add((case.method, case.path, response.status_code))
    case.validate_response(response, checks=checks)
    if response.status_code >= 400:
        assert served.answers == before


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["stroke", "planned", "71", " 71", "NA", "nan", "1_0", "inf"]),
)


def test_a_row_is_answered_exactly_if_the_schema_allows_it(serve: Callable[..., Served]) -> None:
    """Rows of random cells: status, charge and the model's own reading of the row agree."""
    served = serve(requests_per_minute=0, answers_per_minute=0)
    predictor = served.app.state.runtime.predictor
    counts = {200: 0, 422: 0}

    @settings(max_examples=300, deadline=None, database=None)
    @given(changes=st.dictionaries(st.sampled_from(list(ROW)), CELLS, max_size=2))
    def check(changes: dict[str, object]) -> None:
        row = {**ROW, **changes}
        finite = all(not isinstance(cell, float) or math.isfinite(cell) for cell in row.values())
        try:
            predictor.features_of({name: [cell] for name, cell in row.items()})
            valid = finite
        except hf.errors.InvalidInput:
            valid = False
        headers = {"Authorization": f"Bearer {served.key}"}
        content = json.dumps({"queries": [row]})
        response = served.http.post("/v1/predictions/preview", content=content, headers=headers)
        assert response.status_code == (200 if valid else 422), (row, response.text)
        counts[response.status_code] += 1

    check()
    assert min(counts.values()) > 30
    assert served.answers == 0
