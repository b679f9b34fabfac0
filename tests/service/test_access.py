"""Who may ask, and how often: keys, tokens of an issuer, limits over all workers."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import holdfast as hf
from holdfast.service import ServiceSettings, access

from .conftest import Served
from .parts import NAME, ROW, ServiceThread

Start = Callable[..., Served]


def _rows(count: int, first: int = 20) -> list[dict[str, Any]]:
    return [{**ROW, "age": first + number} for number in range(count)]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic YTpi",
        "bearer hf-0000000000000000-" + "A" * 43,
        "\xff",
    ],
)
def test_without_a_valid_key_nothing_is_told(served: Served, header: str) -> None:
    for method, path in [
        ("POST", "/v1/predictions"),
        ("POST", "/v1/predictions/preview"),
        ("POST", "/v1/practice/predictions"),
        ("GET", "/v1/budget"),
        ("GET", "/v1/model"),
        ("GET", "/v1/statement"),
        ("GET", "/v1/ledger"),
        ("POST", "/v1/keys/rotate"),
        ("GET", "/metrics"),
    ]:
        headers = {"Authorization": header.encode("latin-1")} if header else {}
        response = served.http.request(method, path, headers=headers, json={"queries": [ROW]})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert NAME not in response.text
    assert served.answers == 0


def test_a_key_that_another_process_adds_or_revokes_counts_at_once(served: Served) -> None:
    other = hf.Ledger(served.address)
    key = hf.ledger.add_key(other, NAME, "bob")
    assert served.ask(ROW, key=key).status_code == 200
    hf.ledger.revoke_key(other, NAME, key.split("-")[1])
    # The worker may not have read the revocation yet: the transaction that charges does.
    assert served.ask({**ROW, "age": 50}, key=key).status_code == 401
    assert served.send("GET", "/v1/budget", key=key).status_code == 401
    assert served.answers == 1


def test_even_a_recorded_answer_is_not_repeated_for_a_revoked_key(served: Served) -> None:
    served.ask(ROW)
    hf.ledger.revoke_key(hf.Ledger(served.address), NAME, served.key.split("-")[1])
    assert served.ask(ROW).status_code == 401


def test_a_wrong_key_makes_a_worker_read_the_ledger_at_most_once_a_second(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    authentication = served.app.state.runtime.authentication
    reads, read = [], authentication._read_keys
    monkeypatch.setattr(authentication, "_read_keys", lambda: reads.append(1) or read())
    monkeypatch.setattr(access.time, "monotonic", lambda: 1000.0)
    for _ in range(20):
        assert served.ask(ROW, key="hf-0000000000000000-" + "A" * 43).status_code == 401
    assert len(reads) == 1


def test_a_client_rotates_its_own_key(served: Served) -> None:
    found = served.send("POST", "/v1/keys/rotate").json()
    assert served.ask(ROW, key=found["key"]).json()["cost"] == 0.1
    assert served.ask(ROW).json()["cost"] == 0.0  # the same analyst, and still valid for a day
    keys = hf.ledger.list_keys(served.ledger, NAME)
    assert [key.analyst for key in keys] == ["ada", "olga", "ada"]
    assert keys[2].role == "analyst"


def test_the_rate_of_answers_holds_over_workers(serve: Start) -> None:
    one, two = serve(answers_per_minute=4), serve(answers_per_minute=4)
    while time.time() % 60 > 57:  # all of this must happen within a minute
        time.sleep(0.2)
    assert one.ask(*_rows(3)).status_code == 200
    assert two.ask(*_rows(2, 40)).status_code == 429
    assert two.ask(*_rows(1, 40)).status_code == 200
    refused = one.ask(*_rows(1, 60))
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "60"
    assert one.ask(*_rows(3)).json()["cost"] == 0.0  # recorded answers are not new
    assert one.ask(ROW, key=two.owner).status_code == 200  # another analyst
    assert one.answers == 5


def test_requests_are_limited_per_worker(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [6000.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: clock[0])
    served = serve(requests_per_minute=3)
    assert [served.send("GET", "/v1/budget").status_code for _ in range(4)] == [200] * 3 + [429]
    clock[0] += 60.0
    assert served.send("GET", "/v1/budget").status_code == 200


class Issuer:
    """An OIDC issuer on loopback."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        self.keys: Any = {"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}
        self.about: dict[str, Any] = {}
        self.pause = 0.0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(issuer.pause)
                about = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks", **issuer.about}
                body = about if "well-known" in self.path else issuer.keys
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(
        self, key: Any = None, algorithm: str = "RS256", kid: str | None = "one", **claims: Any
    ) -> str:
        now = int(time.time())
        about = {"iss": self.url, "aud": "holdfast", "sub": "eve", "exp": now + 300, **claims}
        about = {name: value for name, value in about.items() if value is not None}
        return jwt.encode(about, key or self.key, algorithm, {} if kid is None else {"kid": kid})


def _signed_by_hmac(key: bytes, issuer: str) -> str:
    """Return a token whose signature a careless check would verify with the public key."""
    claims = {"iss": issuer, "aud": "holdfast", "sub": "eve", "exp": int(time.time()) + 300}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "kid": "one"}, claims)
    ]
    text = b".".join(parts)
    seal = base64.urlsafe_b64encode(hmac.digest(key, text, "sha256")).rstrip(b"=")
    return (text + b"." + seal).decode()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_tokens_of_the_issuer_are_accepted(serve: Start, issuer: Issuer) -> None:
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast", oidc_owners=("boss",))
    assert served.ask(ROW, key=issuer.token()).json()["cost"] == 0.1
    # A subject with the name of an analyst is another analyst, and pays.
    assert served.ask(ROW, key=issuer.token(sub="ada")).json()["cost"] == 0.1
    assert served.ask(ROW).json()["cost"] == 0.1
    analysts = {entry.analyst for entry in served.ledger.entries() if entry.kind == "answer"}
    assert analysts == {"oidc:eve", "oidc:ada", "ada"}
    assert served.send("GET", "/v1/ledger", key=issuer.token()).status_code == 403
    assert served.send("GET", "/v1/ledger", key=issuer.token(sub="boss")).status_code == 200
    assert served.send("POST", "/v1/keys/rotate", key=issuer.token()).status_code == 422


def test_forged_and_foreign_tokens_are_refused(serve: Start, issuer: Issuer) -> None:
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = issuer.token()
    head, payload, signature = good.split(".")
    tokens = {
        "another key": issuer.token(other),
        "another issuer": issuer.token(iss="https://evil.example.org"),
        "another audience": issuer.token(aud="other"),
        "no audience": issuer.token(aud=None),
        "expired": issuer.token(exp=int(time.time()) - 3600),
        "no expiry": issuer.token(exp=None),
        "not yet": issuer.token(nbf=int(time.time()) + 3600),
        "no subject": issuer.token(sub=None),
        "empty subject": issuer.token(sub=""),
        "odd subject": issuer.token(sub="a\nb"),
        "long subject": issuer.token(sub="a" * 151),
        "hmac with the public key": _signed_by_hmac(public, issuer.url),
        "no algorithm": jwt.encode({"sub": "eve"}, None, "none"),
        "cut": f"{head}.{payload}.{signature[:-4]}",
        "swapped": f"{head}.{payload[:-4]}AAAA.{signature}",
        "not a token": "a.b.c",
        "huge": f"{head}.{'A' * 10_000}.{signature}",
    }
    for name, token in tokens.items():
        response = served.ask(ROW, key=token)
        assert response.status_code == 401, name
        assert "token is not valid here" in response.json()["detail"]
    assert served.answers == 0
    assert served.ask(ROW, key=good).status_code == 200


def test_an_issuer_that_is_down_refuses_tokens_but_not_keys(serve: Start) -> None:
    served = serve(oidc_issuer="http://127.0.0.1:1", oidc_audience="holdfast")
    assert served.ask(ROW, key="eyJhbGciOiJSUzI1NiJ9.e30.AAAA").status_code == 401
    assert served.ask(ROW).status_code == 200


def _accepted(check: access.TokenCheck, token: str, times: int) -> int:
    """Return how many of the checks of a token, all at the same time, accept it."""

    def accepts(_: int) -> bool:
        with suppress(hf.errors.AccessDenied):
            return check._checked(token) == ("eve", False)
        return False

    with ThreadPoolExecutor(times) as pool:
        return sum(pool.map(accepts, range(times)))


def test_tokens_that_come_while_keys_are_fetched_are_accepted(issuer: Issuer) -> None:
    """At the start they wait for the keys; later, the keys that are known last for a while."""
    issuer.pause = 0.2
    settings = ServiceSettings("m", "l", oidc_issuer=issuer.url, oidc_audience="holdfast")
    check, token = access.TokenCheck(settings), issuer.token()
    assert _accepted(check, token, 4) == 4
    check._fetched -= access._REFRESH + 1
    check._tried -= access._REFRESH + 1
    assert _accepted(check, token, 4) == 4
    issuer.keys = []  # the refresh fails, and the old keys last until they are too old
    check._fetched -= access._REFRESH + 1
    check._tried -= access._REFRESH + 1
    assert _accepted(check, token, 4) == 4
    check._fetched -= access._KEYS_LAST
    check._tried -= access._KEYS_LAST
    assert _accepted(check, token, 4) == 0


@pytest.mark.parametrize(
    ("kinds", "kid", "status"),
    [
        ([{"kid": "one"}], None, 200),
        ([{}], None, 200),
        ([{"kid": "one", "use": "sig"}, {"kid": "two", "use": "enc"}], None, 200),
        ([{"kid": "one"}, {"kid": "two"}], None, 401),
        ([{"kid": "one"}, {"kid": "one"}], "one", 401),
        ([{"kid": "one"}], "two", 401),
        ([{"kid": "one", "use": "enc"}], "one", 401),
        ([{"kid": "one", "use": "enc"}], None, 401),
        ([{"kid": "one", "use": ["sig"]}], "one", 401),
    ],
)
def test_which_key_of_the_issuer_may_sign(
    serve: Start, issuer: Issuer, kinds: list[dict[str, Any]], kid: str | None, status: int
) -> None:
    """Not one for encryption; without a name in the token, only the single key of the issuer."""
    public = jwt.algorithms.RSAAlgorithm.to_jwk(issuer.key.public_key(), as_dict=True)
    issuer.keys = {"keys": [{**public, **kind} for kind in kinds]}
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast")
    assert served.ask(ROW, key=issuer.token(kid=kid)).status_code == status


def test_a_token_with_deep_json_is_refused(serve: Start, issuer: Issuer) -> None:
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast")
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 3000).rstrip(b"=").decode()
    assert served.ask(ROW, key=f"{deep}.e30.AAAA").status_code == 401
    good = issuer.token().split(".")
    assert served.ask(ROW, key=f"{good[0]}.{deep}.{good[2]}").status_code == 401


@pytest.mark.parametrize("keys", [[], None, "x", 3, {"keys": 3}, {"keys": [{}]}, {}])
def test_odd_keys_of_the_issuer_refuse_tokens(serve: Start, issuer: Issuer, keys: object) -> None:
    issuer.keys = keys
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast")
    assert served.ask(ROW, key=issuer.token()).status_code == 401


@pytest.mark.parametrize(
    "place",
    ["http://keys.example.org/", "http://127.0.0.1:x@a.org/", "https://[", "https://a\nb", None, 3],
)
def test_odd_places_of_keys_refuse_tokens(serve: Start, issuer: Issuer, place: object) -> None:
    issuer.about = {"jwks_uri": place}
    served = serve(oidc_issuer=issuer.url, oidc_audience="holdfast")
    assert served.ask(ROW, key=issuer.token()).status_code == 401


def test_a_new_key_is_good_for_requests_that_come_together(served: Served) -> None:
    """All who wait for one look at the ledger share what it finds."""
    with ServiceThread(served.settings) as service:

        async def statuses(key: str) -> list[int]:
            async with httpx2.AsyncClient(base_url=service.url) as http:
                await asyncio.gather(*(http.get("/healthz") for _ in range(8)))
                headers = {"Authorization": f"Bearer {key}"}
                sent = (http.get("/v1/budget", headers=headers) for _ in range(8))
                return [response.status_code for response in await asyncio.gather(*sent)]

        for number in range(3):
            key = hf.ledger.add_key(served.ledger, NAME, f"new{number}")
            assert asyncio.run(statuses(key)) == [200] * 8
            assert asyncio.run(statuses(f"{key[:-1]}x")) == [401] * 8
