"""Messages of the command line: what a newcomer reads when something is not as expected."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.models import Estimate

runner = CliRunner()
SCHEMA = """
classes = ["no", "yes"]
[columns.age]
range = [18, 90]
[columns.job]
categories = ["clerk", "nurse"]
"""
ROWS = [f"{20 + i},{'nurse' if i % 2 else 'clerk'},{'yes' if i % 2 else 'no'}" for i in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and a schema, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    Path("schema.toml").write_text(SCHEMA)
    write("train.csv", ROWS)
    return tmp_path


def write(name: str, rows: list[str], header: str = "age,job,ill") -> None:
    Path(name).write_text("\n".join([header, *rows]) + "\n")


def train(*options: str, table: str = "train.csv") -> Any:
    given = [table, "--label", "ill", "--schema", "schema.toml", "--queries", "1", *options]
    return runner.invoke(app, ["train", *given])


@pytest.fixture
def model() -> str:
    """The file of a trained model."""
    done = train("--batch-size", "40", "--epsilon", "10")
    assert done.exit_code == 0, done.output
    return "model.holdfast"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-size", "40", "--travel", "-1"], "--travel -1.0: expected a number from"),
        (["--batch-size", "40", "--clip", "9"], "--clip 9.0: expected at most"),
        (["--batch-size", "40", "--epsilon", "-1"], "--epsilon -1.0: expected a number above 0"),
        ([], "--batch-size is missing"),
        (["--model", "mlp:4"], "--batch-size is missing"),
        (["--model", "mlp:4", "--travel", "3"], "--travel is for a head"),
    ],
)
def test_errors_speak_of_options(options: list[str], said: str) -> None:
    done = train(*options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "batch_size=" not in done.stderr


def test_a_second_budget_points_to_the_command_that_raises_it() -> None:
    create = ["budget", "create", "ward", "--epsilon", "1"]
    assert runner.invoke(app, create).exit_code == 0
    assert "to raise it, use `holdfast budget raise`" in runner.invoke(app, create).stderr


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("abc,nurse,yes", "column 'age', row 2: 'abc' is not a number"),
        ('"1,5",nurse,yes', "column 'age', row 2: '1,5' is not a number; write decimals with a"),
        ("30,chef,yes", "column 'job', row 2: 'chef' is not one of its categories"),
        ("30,nurse,maybe", "column 'ill', row 2: 'maybe' is not one of the classes"),
        ("30,nurse", "row 2: 2 cells; expected 3"),
        (",nurse,yes", "column 'age', row 2: a value is missing"),
    ],
)
def test_rows_count_from_1_and_columns_are_named(row: str, said: str) -> None:
    write("bad.csv", [ROWS[0], row, *ROWS[2:]])
    done = train("--batch-size", "40", "--epsilon", "10", table="bad.csv")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_table_with_semicolons_is_recognised(model: str) -> None:
    write("semicolons.csv", [row.replace(",", ";") for row in ROWS], "age;job;ill")
    done = runner.invoke(app, ["certify", model, "semicolons.csv", "--label", "ill", "--json"])
    assert json.loads(done.stdout)["queries"] == 40


def test_a_missing_value_in_a_query_says_what_the_analyst_can_do(model: str) -> None:
    runner.invoke(app, ["budget", "create", "default", "--epsilon", "10", "--queries", "5"])
    row = '{"age": NaN, "job": "nurse"}'
    done = runner.invoke(app, ["ask", model, "--row", row, "--analyst", "ada"])
    assert done.exit_code == 2
    assert "column 'age', row 1: a value is missing. In a query, fill it in" in done.stderr
    assert hf.Ledger("sqlite:///ledger.db").status("default").answers == 0


@pytest.mark.parametrize(
    "command",
    [
        ["train", "train.csv", "--label", "ill", "--schema", "schema.toml", "--batch-size", "40"],
        ["example", "--out", "."],
        ["demo", "--out", "."],
        ["simulate", "model.holdfast", "train.csv", "--label", "ill"],
        ["schema", "train.csv", "--label", "ill", "--out", "drafted.toml"],
    ],
    ids=lambda command: str(command[0]),
)
def test_a_read_only_folder_is_said_before_the_work(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser may write everywhere, so permissions of real files would not do as a test.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    before = sorted(os.listdir())
    done = runner.invoke(app, command)
    assert done.exit_code == 2
    assert "cannot be written; use another file or folder" in done.stderr
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "command",
    [
        ["ask", "model.holdfast", "train.csv"],
        ["budget", "show"],
        ["budget", "create", "ward", "--epsilon", "-1"],
        ["budget", "create", "ward", "--epsilon", "1", "--share", "ada=2"],
        ["budget", "create", "ward", "--epsilon", "1", "--delta", "0", "--release"],
        ["statement", "model.holdfast", "--out", "statement.md"],
        ["card", "model.holdfast", "--out", "card.md"],
        ["release", "model.holdfast"],
        ["simulate", "model.holdfast", "train.csv", "--label", "age"],
        ["schema", "train.csv", "--label", "nothing", "--out", "drafted.toml"],
        ["example", "nothing"],
        ["train", "train.csv", "--label", "ill", "--schema", "schema.toml"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_refused_command_leaves_no_file_behind(command: list[str], model: str) -> None:
    before = sorted(path for path, _, _ in os.walk(".")), sorted(os.listdir())
    done = runner.invoke(app, command)
    assert done.exit_code in (2, 4), done.output
    assert len(done.stderr.strip().splitlines()) == 1
    assert (sorted(path for path, _, _ in os.walk(".")), sorted(os.listdir())) == before


def test_an_unreadable_key_comes_with_a_remedy(folder: Path) -> None:
    runner.invoke(app, ["budget", "create", "ward", "--epsilon", "1"])
    (key,) = (folder / "home").glob("*.key")
    key.unlink()
    done = runner.invoke(app, ["budget", "show"])
    assert done.exit_code == 4
    assert "copy it here, or set HOLDFAST_HOME" in done.stderr
    key.mkdir()  # cannot be read as a file, whoever asks
    done = runner.invoke(app, ["budget", "show"])
    assert done.exit_code == 4
    assert "Make it yours and readable (chown, chmod 600)" in done.stderr


def test_a_dry_run_says_when_the_machine_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "holdfast.cli.train.NetworkJob.estimate", lambda job: Estimate(1.0, 2**60, 10)
    )
    with pytest.warns(hf.errors.HoldfastWarning, match="more memory than the machine has"):
        train("--model", "mlp:4", "--batch-size", "40", "--dry-run")


def test_a_largest_distance_that_is_too_small_is_told() -> None:
    write("many.csv", ROWS * 100)
    options = ["--model", "linear-box", "--max-distance", "2", "--batch-size", "4000"]
    given = ["many.csv", "--label", "ill", "--schema", "schema.toml", *options, "--clip", "1"]
    assert runner.invoke(app, ["train", *given]).exit_code == 0
    simulate = ["simulate", "model.holdfast", "train.csv", "--label", "ill", "--epsilon", "1"]
    with pytest.warns(hf.errors.HoldfastWarning, match="the largest distance of this model, and 1"):
        assert runner.invoke(app, simulate).exit_code == 0
    against = [*simulate[:-2], "--against", "epsilon"]
    with pytest.warns(hf.errors.HoldfastWarning, match="at epsilon = 0.01 need about"):
        done = runner.invoke(app, against)
    assert done.exit_code == 0, done.output


def test_an_interruption_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.train.NetworkJob.train", interrupt)
    options = ["--model", "mlp:4", "--batch-size", "40"]
    done = train(*options)
    assert (done.exit_code, done.stderr) == (130, "holdfast: interrupted\n")
    done = train(*options, "--checkpoint", "run.ckpt")
    assert "no step was finished, so there is no checkpoint at run.ckpt" in done.stderr
    Path("run.ckpt").touch()
    done = train(*options, "--checkpoint", "run.ckpt")
    assert done.stderr == (
        "holdfast: interrupted; the same command goes on from the checkpoint run.ckpt\n"
    )


def test_the_doctor_finds_what_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked() -> dict[str, tuple[str, str]]:
        done = runner.invoke(app, ["doctor", "--json"])
        found = {row["what"]: (row["state"], row["text"]) for row in json.loads(done.stdout)}
        assert done.exit_code == (2 if "wrong" in {state for state, _ in found.values()} else 0)
        return found

    assert checked()["ledger"][0] == "note"
    runner.invoke(app, ["budget", "create", "ward", "--epsilon", "1"])
    found = checked()
    assert found["ledger"] == ("ok", "1 entries, all as they were written")
    assert "in the folder of the database" in found["backups"][1]
    (key,) = (folder / "home").glob("*.key")
    key.chmod(0o644)
    assert "chmod 600" in checked()["key"][1]
    Path("ledger.db").rename("moved.db")
    assert checked()["ledger"][0] == "wrong"  # there was one, and it is gone
    Path("moved.db").rename("ledger.db")
    key.unlink()
    assert checked()["ledger"][0] == "wrong"
    assert not any("missing" in text for state, text in found.values() if state == "wrong")


def test_logging_is_silent_by_default_and_holds_nothing_private(
    model: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("holdfast")
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    ledger = hf.Ledger("sqlite:///ledger.db")
    ledger.create_budget("default", hf.Budget(10.0, 1e-6), queries=5)
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        predictor = hf.PrivatePredictor(hf.load(model), ledger)
        answer = predictor.ask({"age": 47.25, "job": "nurse"}, analyst="ada")
    assert capfd.readouterr().err == ""
    said = [record.getMessage() for record in caplog.records]
    assert "'default': 1 answers to 'ada', 1 new" in said
    assert not any("47.25" in text or "nurse" in text or str(answer.label) in text for text in said)


def test_a_schema_drafted_from_the_private_table_is_warned_of() -> None:
    assert runner.invoke(app, ["schema", "train.csv", "--label", "ill", "--out", "d.toml"])
    given = ["train.csv", "--label", "ill", "--schema", "d.toml", "--batch-size", "40"]
    with pytest.warns(hf.errors.HoldfastWarning, match="drafted from train.csv, the private table"):
        runner.invoke(app, ["train", *given, "--epsilon", "10", "--queries", "1"])


def test_a_preview_of_too_many_questions_says_that_they_would_be_refused(model: str) -> None:
    runner.invoke(app, ["budget", "create", "default", "--epsilon", "10", "--queries", "5"])
    done = runner.invoke(app, ["ask", model, "train.csv", "--analyst", "ada", "--preview"])
    assert done.exit_code == 3
    assert "ada: 40 new answers would be refused" in done.stderr
    assert "enough for 5; of the whole budget, 0.0% is spent" in done.stderr
    assert "--analyst is missing" in runner.invoke(app, ["ask", model, "train.csv"]).stderr


def test_questions_are_new_after_a_retraining(model: str) -> None:
    runner.invoke(app, ["budget", "create", "default", "--epsilon", "10", "--queries", "50"])
    asked = ["ask", model, "train.csv", "--analyst", "ada"]
    assert runner.invoke(app, asked).exit_code == 0
    again = train("--batch-size", "40", "--epsilon", "10")
    assert "model.holdfast was replaced" in " ".join(again.output.split())
    done = runner.invoke(app, [*asked, "--preview"])
    assert "after a retraining, all questions are new" in done.stderr


def test_a_ledger_in_another_folder_is_named(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.invoke(app, ["budget", "create", "default", "--epsilon", "10", "--queries", "5"])
    here = Path.cwd()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    done = runner.invoke(app, ["budget", "show"])
    assert f"no ledger here (there are ledgers at {here / 'ledger.db'}" in done.stderr


def test_a_second_name_in_a_ledger_is_pointed_out() -> None:
    runner.invoke(app, ["budget", "create", "ward", "--epsilon", "1"])
    done = runner.invoke(app, ["budget", "create", "ward-public", "--epsilon", "1"])
    said = " ".join(done.output.split())
    assert "also has budgets for ward. If they are about the same people" in said
    lower = runner.invoke(app, ["budget", "raise", "ward", "--epsilon", "0.5"])
    assert "does not allow more than (1, 1e-06), the current budget" in lower.stderr


def test_diagnose_says_whether_labels_are_right(model: str) -> None:
    done = runner.invoke(app, ["diagnose", model, "train.csv", "--label", "ill"])
    assert "labels: right for 1.000 of the queries; always answering the" in " ".join(
        done.output.split()
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("age,job,ill\rabc,nurse,no\r", "column 'age', row 1: 'abc' is not a number"),
        ('"a\nz",age,job,ill\n1,abc,nurse,no\n', "column 'age', row 1: 'abc' is not a number"),
        ("age,job,ill\n\n30,nurse,no\n\n31,no\n", "row 2: 2 cells; expected 3"),
        ("age,job,ill\n30,seed=3,no\n", "row 1: 'seed=3' is not one of its categories"),
        ('age,job,ill\n"1,000",nurse,no\n', "'1,000' is not a number; list the categories"),
    ],
)
def test_odd_tables_are_told_apart(content: str, said: str) -> None:
    Path("odd.csv").write_bytes(content.encode())
    done = train("--batch-size", "40", "--epsilon", "10", table="odd.csv")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_path_with_an_equals_sign_stays_as_it_is() -> None:
    done = train("--batch-size", "40", table="dataset=ward/train.csv")
    assert done.stderr.startswith("holdfast: dataset=ward/train.csv: no such file")


def test_cells_outside_the_schema_are_handed_back_as_they_were(model: str) -> None:
    runner.invoke(app, ["budget", "create", "default", "--epsilon", "10", "--queries", "5"])
    write("odd.csv", ["007,08:00,TRUE,30,nurse"], "id,when,flag,age,job")
    done = runner.invoke(app, ["ask", model, "odd.csv", "--analyst", "a", "--out", "answers.csv"])
    assert done.exit_code == 0, done.output
    cells = Path("answers.csv").read_text().splitlines()[1].replace('"', "").split(",")
    assert cells[:5] == ["007", "08:00", "TRUE", "30", "nurse"]
