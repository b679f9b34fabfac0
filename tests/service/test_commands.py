"""The commands of the service: keys, the life cycle of a budget, the statement, and serve."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import holdfast as hf
from holdfast.cli import app

from .parts import NAME


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/ledger.db"
    hf.Ledger(address).create_budget(NAME, hf.Budget(1.0), queries=10)
    return address


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_keys_are_added_listed_rotated_and_revoked(ledger: str) -> None:
    where = ("--ledger", ledger)
    text = _run("keys", "add", NAME, "ada", *where).stdout.strip()
    assert re.fullmatch(r"hf-[0-9a-f]{16}-[A-Za-z0-9_-]{43}", text)
    found = json.loads(_run("keys", "list", NAME, "--json", *where).stdout)
    assert [(row["analyst"], row["role"], row["valid"]) for row in found] == [
        ("ada", "analyst", True)
    ]
    assert "ada" in _run("keys", "list", NAME, *where).stdout
    key_id = text.split("-")[1]
    new = _run("keys", "rotate", NAME, key_id, "--overlap-hours", "0", *where).stdout.strip()
    assert _run("keys", "revoke", NAME, new.split("-")[1], *where).exit_code == 0
    found = json.loads(_run("keys", "list", NAME, "--json", *where).stdout)
    assert [row["valid"] for row in found] == [False, False]
    never = _run("keys", "add", NAME, "bob", "--days", "0", "--json", *where)
    assert json.loads(never.stdout)["key"].startswith("hf-")
    assert "never" in _run("keys", "list", NAME, *where).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("keys", "add", "ward-8", "ada"), "no budget for the data set 'ward-8'"),
        (("keys", "add", NAME, "ada", "--role", "root"), "--role 'root': expected one of"),
        (("keys", "add", NAME, "ada", "--days", "-1"), "--days -1.0: expected"),
        (("keys", "revoke", NAME, "beef"), "no key 'beef'"),
        (("keys", "rotate", NAME, "beef"), "no key 'beef'"),
    ],
)
def test_wrong_arguments_are_named(ledger: str, words: tuple[str, ...], message: str) -> None:
    result = _run(*words, "--ledger", ledger)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_budget_is_raised_with_a_reason_and_closed(ledger: str) -> None:
    where = ("--ledger", ledger)
    assert _run("budget", "raise", NAME, "--epsilon", "2", "--reason", "why", *where).exit_code == 0
    closed = _run("budget", "close", NAME, "--reason", "the study ended", "--json", *where)
    assert json.loads(closed.stdout)["closed"] == "the study ended"
    again = _run("budget", "raise", NAME, "--epsilon", "3", *where)
    assert again.exit_code == 2
    assert "closed for good" in again.stderr
    entries = _run("budget", "export", *where).stdout
    assert '\\"reason\\": \\"why\\"' in entries


def test_the_statement_as_data(ledger: str, model_file: Path, tmp_path: Path) -> None:
    where = ("--ledger", ledger)
    printed = json.loads(_run("statement", str(model_file), "--json", *where).stdout)
    out = tmp_path / "statement.json"
    assert _run("statement", str(model_file), "--out", str(out), *where).exit_code == 0
    assert json.loads(out.read_text()) == printed
    assert printed["privacy_unit"]["relation"] == "add_remove"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--response-step", "99"), "--response-step 99.0: expected seconds"),
        (("--oidc-issuer", "https://a.example.org"), "expected both or neither"),
        (("--oidc-issuer", "http://a.org", "--oidc-audience", "x"), "expected an https:// address"),
        (("--signed",), "sign"),
    ],
)
def test_serve_refuses_before_it_starts(
    ledger: str, model_file: Path, words: tuple[str, ...], message: str
) -> None:
    result = _run("serve", str(model_file), "--ledger", ledger, *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_serve_needs_a_budget_and_a_ledger(model_file: Path, tmp_path: Path) -> None:
    nothing = _run("serve", str(model_file), "--ledger", f"sqlite:///{tmp_path}/none.db")
    assert nothing.exit_code == 2
    assert "holdfast budget create" in nothing.stderr


def test_serve_refuses_a_port_in_use(ledger: str, model_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = _run("serve", str(model_file), "--ledger", ledger, "--port", port)
    assert result.exit_code == 2
    assert f"port {port} (Address already in use" in result.stderr
    assert "choose another port" in result.stderr
