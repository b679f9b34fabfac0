"""The files in deploy/ cannot be run here; what can be checked of them is."""

from __future__ import annotations

import configparser
import stat
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app

ROOT = Path(__file__).parent.parent


def test_nothing_but_the_source_reaches_the_image() -> None:
    """The first pattern leaves everything out; then only what the installation reads comes back."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    kept = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", "constraints.txt", "src", about["readme"], *about["license-files"]}
    assert kept == needed


def test_the_compose_file_waits_for_the_server_and_hides_its_password() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert "--host" in services["database"]["healthcheck"]["test"]
    environment = services["service"]["environment"]
    assert "PASSWORD" not in environment["HOLDFAST_LEDGER"]
    assert environment["PGPASSWORD"] == services["database"]["environment"]["POSTGRES_PASSWORD"]


def test_the_unit_has_a_folder_for_its_state() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "holdfast.service")
    service = unit["Service"]
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("holdfast", "0700")
    assert f"/var/lib/{service['StateDirectory']}/" in service["ExecStart"]


@pytest.mark.parametrize("option", ["ledger", "sign"])
def test_a_password_on_the_command_line_is_warned_of(option: str, tmp_path: Path) -> None:
    command = ["budget", "show"] if option == "ledger" else ["train", "no.csv", "--label", "y"]
    address = "postgresql://holdfast:p%2Fss@127.0.0.1:1/holdfast"
    warning = f"Warning: --{option} shows the password"
    done = CliRunner().invoke(app, [*command, f"--{option}", address])
    assert warning in done.stderr
    assert "p%2Fss" not in done.stderr
    for other in ("postgresql://u:p/w@127.0.0.1:1/d", "postgresql://h/d?user=u&password=secret"):
        assert warning in CliRunner().invoke(app, [*command, f"--{option}", other]).stderr
    quiet = CliRunner().invoke(
        app, [*command, f"--{option}", "postgresql://h@127.0.0.1:1/holdfast"]
    )
    assert warning not in quiet.stderr
    from_environment = CliRunner(env={"HOLDFAST_LEDGER": address}).invoke(app, ["budget", "show"])
    assert warning not in from_environment.stderr


def test_the_files_of_a_ledger_are_the_owners_alone(tmp_path: Path) -> None:
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("ledger.db*")}
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600)
