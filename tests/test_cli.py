"""Tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app

pytestmark = pytest.mark.usefixtures("no_shape_checks")

runner = CliRunner()


def run(*arguments: object) -> str:
    """Run a command that must succeed and return its output."""
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    """Run a command that must fail with one line and exit code 2, and return that line."""
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("holdfast: ")
    assert "Traceback" not in result.output
    return result.stderr


def test_demo_draws_and_prints(tmp_path: Path) -> None:
    assert "close (accuracy 97" in run("demo", "--out", tmp_path, "--max-distance", 3)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_as_json(tmp_path: Path) -> None:
    figures = json.loads(run("demo", "--out", tmp_path, "--max-distance", 2, "--json"))
    assert figures["far"]["certified_share"]["2"] == 1.0
    assert 0.97 < figures["close"]["accuracy"] < 0.99


def test_version_and_help() -> None:
    assert run("--version").strip() == hf.__version__
    for command in ("demo", "example", "train", "certify", "simulate", "plan", "ask"):
        assert command in run("--help")
        assert "--json" in run(command, "--help")


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the paper's far blobs under replace to distance 200, as in its figures."""
    folder = tmp_path_factory.mktemp("blobs")
    run("example", "blobs-far", "--out", folder)
    recipe = ["--learning-rate", 2, "--decay", 0.6, "--clip", 0.06, "--id", "id"]
    run(
        "train",
        folder / "train.csv",
        "--label",
        "cloud",
        "--schema",
        folder / "schema.toml",
        "--model",
        "linear-box",
        "--neighbours",
        "replace",
        "--max-distance",
        200,
        "--out",
        folder / "model.holdfast",
        *recipe,
    )
    return folder


def test_certify_tells_shares_and_writes_certificates(blobs: Path) -> None:
    arguments = ("certify", blobs / "model.holdfast", blobs / "queries.csv", "--label", "cloud")
    figures = json.loads(run(*arguments, "--json"))
    assert figures["accuracy"] > 0.99
    assert figures["certified_share"]["200"] > 0.95
    text = run(*arguments, "--out", blobs / "certificates.csv")
    assert "not private: for the owner" in text
    lines = (blobs / "certificates.csv").read_text().splitlines()
    assert lines[0] == '"label","distance"'
    assert len(lines) == 1251
    assert {line.split(",")[0] for line in lines[1:]} == {'"upper"', '"lower"'}


def test_simulate_on_far_blobs_reaches_the_expected_queries(
    blobs: Path, figures: dict[str, str]
) -> None:
    """At (10, 1e-5) and accuracy 0.98, BudgetedResponse answers at least 30,000 queries.

    The paper's mechanism answers fewer than 100.
    """
    out = blobs / "simulate.png"
    result = json.loads(
        run(
            "simulate",
            blobs / "model.holdfast",
            blobs / "queries.csv",
            "--label",
            "cloud",
            "--accuracy",
            0.98,
            "--epsilon",
            10,
            "--out",
            out,
            "--json",
        )
    )
    reach = result["largest_queries"]["mechanisms"]
    figures["far blobs, largest number of queries at accuracy 0.98"] = ", ".join(
        f"{name} {most:,}" for name, most in reach.items()
    )
    assert 0 < reach["CauchyResponse (paper)"] < 100
    assert reach["BudgetedResponse"] >= 30_000
    assert (
        reach["LaplaceResponse (paper)"]
        < reach["CauchyResponse (paper)"]
        < reach["StableResponse"]
        < reach["BudgetedResponse"]
    )
    assert out.read_bytes().startswith(b"\x89PNG")


def test_simulate_against_epsilon_with_an_ensemble(blobs: Path) -> None:
    model = blobs / "ensemble.holdfast"
    run(
        "train",
        blobs / "train.csv",
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--model",
        "linear-box",
        "--members",
        5,
        "--max-distance",
        5,
        "--batch-size",
        1000,
        "--learning-rate",
        2,
        "--out",
        model,
    )
    text = run(
        "simulate",
        model,
        blobs / "queries.csv",
        "--label",
        "cloud",
        "--against",
        "epsilon",
        "--queries",
        10,
        "--out",
        blobs / "e.png",
    )
    for word in ("NoisyArgmax", "not private: for the owner", "total epsilon"):
        assert word in text
    figures = json.loads(
        run(
            "simulate",
            model,
            blobs / "queries.csv",
            "--label",
            "cloud",
            "--against",
            "epsilon",
            "--delta",
            0,
            "--out",
            blobs / "e.png",
            "--json",
        )
    )
    assert "BudgetedResponse" not in figures["mechanisms"]
    accuracies = [outcome["accuracy"] for outcome in figures["mechanisms"]["StableResponse"]]
    assert accuracies == sorted(accuracies)


def test_a_head_with_defaults_from_table_to_answers(blobs: Path, tmp_path: Path) -> None:
    """The shortest road: no setting but public numbers, and useful private answers."""
    out, ledger = tmp_path / "head.holdfast", f"sqlite:///{tmp_path}/ledger.db"
    train = ("train", blobs / "train.csv", "--label", "cloud", "--schema", blobs / "schema.toml")
    goal = ("--epsilon", 2, "--delta", 1e-6, "--queries", 100)
    figures = json.loads(
        run(*train, "--batch-size", 5000, *goal, "--dataset", "w", "--out", out, "--json")
    )
    wanted = hf.LinearRecipe.for_budget(
        records=5000, features=6, classes=2, budget=hf.Budget(2.0, 1e-6), queries=100
    )
    assert figures["recipe"]["travel"] == wanted.travel
    assert isinstance(hf.load(out), hf.heads.CertifiedHead)
    run("budget", "create", "w", *goal, "--ledger", ledger)
    answers = tmp_path / "answers.csv"
    first = tmp_path / "first.csv"
    first.write_text("\n".join((blobs / "queries.csv").read_text().splitlines()[:51]) + "\n")
    run("ask", out, first, "--analyst", "a", "--ledger", ledger, "--out", answers)
    assert len(answers.read_text().splitlines()) == 51
    assert "a linear head" in run("statement", out, "--ledger", ledger)
    shares = json.loads(run("certify", out, blobs / "queries.csv", "--label", "cloud", "--json"))
    assert shares["accuracy"] > 0.9
    chosen = json.loads(
        run(*train, "--batch-size", 5000, "--travel", 7, "--clip", 0.2, "--out", out, "--json")
    )
    assert (chosen["recipe"]["travel"], chosen["recipe"]["clip"]) == (7.0, 0.2)


def test_a_head_is_released_and_answers_free_of_charge(
    blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    goal = ("--epsilon", 1, "--delta", 1e-6)
    train = ("train", blobs / "train.csv", "--label", "cloud", "--schema", blobs / "schema.toml")
    said = run(*train, "--batch-size", 5000, *goal, "--release", "--dataset", "w")
    assert "for a release under (1, 1e-06)" in " ".join(said.split())
    assert "Next: holdfast release" in said
    run("budget", "create", "w", *goal, "--release")
    said = run("release", "model.holdfast")
    assert "0% of the budget is left" in " ".join(said.split())
    again = json.loads(run("release", "model.holdfast", "--out", "again.holdfast", "--json"))
    first, second = (hf.load(tmp_path / f"{name}.holdfast") for name in ("released", "again"))
    assert torch.equal(first.weights, second.weights)
    assert again["noise"] == first.release.noise
    run("ask", "released.holdfast", blobs / "queries.csv", "--out", "answers.csv")
    rows = (tmp_path / "answers.csv").read_text().replace('"', "").splitlines()[1:]
    answers = [row.split(",")[-1] for row in rows]
    right = [
        line.split(",")[-1].strip('"')
        for line in (blobs / "queries.csv").read_text().splitlines()[1:]
    ]
    assert sum(a == b for a, b in zip(answers, right, strict=True)) > 0.9 * len(right)
    row = json.dumps(dict.fromkeys([entry.name for entry in first.preprocessing.columns], 1.0))
    assert json.loads(run("ask", "released.holdfast", "--row", row, "--json"))[0]["cost"] == 0.0
    assert "(1, 1e-06)-differential privacy" in run("statement", "released.holdfast")
    assert "1 released" in run("budget", "show", "w")
    assert "`holdfast ask`" in refused("certify", "released.holdfast", blobs / "queries.csv")
    spent = runner.invoke(app, ["release", "model.holdfast", *map(str, goal)])
    assert spent.exit_code == 3
    assert "has no signature" in refused(
        "ask", "released.holdfast", blobs / "queries.csv", "--signed"
    )
    assert "would overwrite" in refused("release", "model.holdfast", "--out", "model.holdfast")
    assert "both --epsilon" in refused("release", "model.holdfast", "--epsilon", 1)
    assert "not needed" in refused(*train, "--batch-size", 5000, "--release", "--queries", 5)
    asked = ("ask", "model.holdfast", blobs / "queries.csv", "--analyst", "a")
    assert "granted for the release" in refused(*asked)


def test_training_per_person(blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    header, *rows = (blobs / "train.csv").read_text().splitlines()
    lines = [f"{row},p{number // 2}" for number, row in enumerate(rows)]
    Path("train.csv").write_text("\n".join([f"{header},person", *lines]) + "\n")
    train = ("train", "train.csv", "--label", "cloud", "--schema", blobs / "schema.toml")
    train += ("--person", "person", "--dataset", "w")
    assert "number of persons is private" in refused(*train)
    said = run(*train, "--batch-size", 2500)
    assert "private per person, 2,500 persons" in " ".join(said.split())
    run(*train, "--batch-size", 2500, "--max-records-per-person", 1, "--out", "one.holdfast")
    figures = run(
        *train, "--batch-size", 2500, "--model", "linear-box", "--max-distance", 2, "--json",
        "--out", "boxes.holdfast",
    )  # fmt: skip
    assert json.loads(figures)["neighbours"] == "add_remove_person"
    assert json.loads(figures)["persons"] == 2500
    goal = ("--epsilon", 2, "--delta", 1e-6, "--queries", 100)
    run("budget", "create", "w", *goal, "--neighbours", "add_remove_person")
    assert "per person, add_remove_person" in " ".join(run("budget", "show", "w").split())
    names = [entry.name for entry in hf.load("model.holdfast").preprocessing.columns]
    row = json.dumps(dict.fromkeys(names, 1.0))
    assert (
        json.loads(run("ask", "model.holdfast", "--row", row, "--analyst", "a", "--json"))[0][
            "cost"
        ]
        > 0.0
    )
    assert "one person, with all of their records" in run("statement", "model.holdfast")
    Path("train.csv").write_text("\n".join([f"{header},person", *lines[:-1], f"{rows[-1]},NA"]))
    assert "a record without an owner" in refused(*train, "--batch-size", 2500)
    assert "also a feature" in refused(*train, "--person", "x1")
    assert "cannot also be" in refused(*train, "--person", "cloud")
    assert "leave out --id" in refused(*train, "--id", "id")
    assert "--neighbours remove" in refused(*train, "--neighbours", "remove")
    plain = train[:6]
    assert "needs --person" in refused(*plain, "--max-records-per-person", 2)
    assert "needs --person" in refused(*plain, "--neighbours", "add_remove_person")


def test_diagnose_tells_what_to_change(blobs: Path, tmp_path: Path) -> None:
    queries = blobs / "queries.csv"
    said = run("diagnose", blobs / "model.holdfast", queries, "--label", "cloud")
    assert "the box grows fastest in step" in " ".join(said.split())
    assert "no better than" not in said
    found = json.loads(run("diagnose", blobs / "model.holdfast", "--json"))
    assert found["useless"] is None
    assert found["advice"]
    lines = queries.read_text().splitlines()
    same = [line for line in lines if line.endswith(lines[1].split(",")[-1])]
    Path(tmp_path / "same.csv").write_text("\n".join([lines[0], *same]) + "\n")
    said = run("diagnose", blobs / "model.holdfast", tmp_path / "same.csv")
    assert "gives the label" in " ".join(said.split())
    head = tmp_path / "head.holdfast"
    train = ("train", blobs / "train.csv", "--label", "cloud", "--schema", blobs / "schema.toml")
    run(*train, "--batch-size", 5000, "--out", head)
    assert "One record moves the weights" in " ".join(run("diagnose", head).split())
    assert "needs a table" in refused("diagnose", head, "--label", "cloud")


def test_a_dry_run_estimates_and_writes_nothing(blobs: Path) -> None:
    out = blobs / "never.holdfast"
    arguments = (
        "train",
        blobs / "train.csv",
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--batch-size",
        5000,
        "--out",
        out,
        "--dry-run",
    )
    figures = json.loads(run(*arguments, "--json"))
    assert figures["seconds"] > 0
    assert figures["memory_bytes"] > 0
    assert not out.exists()
    real = json.loads(run(*arguments[:-1], "--json"))
    assert figures["file_bytes"] == pytest.approx(real["bytes"], rel=0.05)
    assert "about" in run(*arguments, "--members", 3, "--batch-size", 1700)


def test_a_model_by_factory(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(blobs)
    (blobs / "my_models.py").write_text(
        "import torch\n\ndef tall(inputs, outputs, seed):\n    return "
        "torch.nn.Sequential(torch.nn.Linear(inputs, 4), torch.nn.Tanh(), torch.nn.Linear(4, "
        "outputs))\n"
        "def nothing(inputs, outputs, seed):\n    return None\n"
    )
    arguments = (
        "train",
        "train.csv",
        "--label",
        "cloud",
        "--schema",
        "schema.toml",
        "--batch-size",
        5000,
        "--max-distance",
        2,
        "--out",
        "tall.holdfast",
    )
    run(*arguments, "--model", "my_models:tall", "--zero-output", "--loss", "binary_cross_entropy")
    assert hf.load(blobs / "tall.holdfast").network.outputs == 1
    assert "returned a NoneType" in refused(*arguments, "--model", "my_models:nothing")
    for model in (
        "mlp:0",
        "mlp:",
        "mlp",
        "mlp:²",
        "mlp:99999999999",
        "nowhere.to:be",
        "my_models:absent",
        "my_models:torch",
        ".x:f",
        "xgboost",
    ):
        assert f"model {model!r}" in refused(*arguments, "--model", model)


def test_plan_reproduces_the_table_of_distances() -> None:
    """The needed distances are at most the published ones in our columns, and equal the paper's.

    They are for less than 1% flips, two classes and delta = 1e-5.
    """
    rows = json.loads(run("plan", "--json"))
    published = {
        (10.0, 10): (36, 4, 3),
        (10.0, 100): (304, 25, 9),
        (10.0, 1000): (1088, 79, 24),
        (10.0, 10_000): (3866, 250, 74),
        (1.0, 100): (2958, 196, 63),
    }
    assert {(row["epsilon"], row["queries"]) for row in rows} == set(published)
    for row in rows:
        paper, stable, budgeted = published[row["epsilon"], row["queries"]]
        needed = row["distance"]
        assert needed["cauchy, the paper's composition"] == paper
        assert needed["stable response, the paper's composition"] <= stable
        assert (
            needed["stable response, optimal composition"]
            <= needed["stable response, the paper's composition"]
        )
        assert needed["budgeted response"] <= budgeted
    assert "budgeted" in run("plan", "--epsilon", 3, "--queries", 50, "--classes", 4)


def test_plan_compares_ways_on_a_public_table(
    blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (blobs / "queries.csv").read_text().splitlines()[:301]
    (tmp_path / "public.csv").write_text("\n".join(rows) + "\n")
    options = ("--label", "cloud", "--schema", blobs / "schema.toml", "--records", 5000)
    goal = ("--epsilon", 1, "--queries", 10)
    said = run("plan", "--public", "public.csv", *options, *goal)
    assert "based on public records" in " ".join(said.split())
    assert "10 queries under (1, 1e-05)" in said
    assert not (tmp_path / "plan.png").exists()  # a map of one cell says nothing
    run("plan", "--records", 5000, "--features", 6, *goal, "--out", "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 5000
    assert "--keep-secret" in refused("plan", "--private", "public.csv", *options, *goal)
    assert "needs --records" in refused("plan", "--public", "public.csv")
    assert "needs --label and --schema" in refused(
        "plan", "--public", "public.csv", "--records", 50
    )


def test_mistakes_end_with_one_line(blobs: Path, tmp_path: Path) -> None:
    train = ("train", blobs / "train.csv", "--label", "cloud", "--schema", blobs / "schema.toml")
    assert "--batch-size is missing" in refused(*train)
    assert "--batch-size is missing" in refused(*train, "--model", "mlp:4")
    assert "--epochs is for networks" in refused(*train, "--epochs", "2")
    assert "--epsilon 0" in refused(*train, "--batch-size", 5000, "--epsilon", 0)
    assert "--travel is for a head" in refused(*train, "--model", "mlp:4", "--travel", "2")
    assert "--neighbours 'hamming'" in refused(
        *train, "--neighbours", "hamming", "--batch-size", 5000
    )
    assert "no column 'nephology'" in refused(
        "train", blobs / "train.csv", "--label", "nephology", "--schema", blobs / "schema.toml"
    )
    assert "no such file" in refused(
        "train", tmp_path / "absent.csv", "--label", "y", "--schema", blobs / "schema.toml"
    )
    assert "not a readable schema" in refused(
        "train", blobs / "train.csv", "--label", "cloud", "--schema", tmp_path / "absent.toml"
    )
    assert "does not exist" in refused(
        *train, "--batch-size", 5000, "--out", tmp_path / "no" / "model"
    )
    assert "no such file" in refused("certify", tmp_path / "absent", blobs / "queries.csv")
    assert "expected one of 'blobs-far'" in refused("example", "mnist")
    (tmp_path / "odd.txt").write_text("a\n1\n")
    assert "the ending .csv or .parquet" in refused(
        "certify", blobs / "model.holdfast", tmp_path / "odd.txt"
    )
    (tmp_path / "odd.csv").write_text('a,b\n1\n"2')
    assert "not a readable table" in refused(
        "certify", blobs / "model.holdfast", tmp_path / "odd.csv"
    )
    (tmp_path / "text.csv").write_text(
        "x1,x2,x1_squared,x2_squared,x1_cubed,x2_cubed\n1,2,three,4,5,6\n"
    )
    assert "three" in refused("certify", blobs / "model.holdfast", tmp_path / "text.csv")
    (tmp_path / "none.csv").write_text("x1,x2,x1_squared,x2_squared,x1_cubed,x2_cubed,cloud\n")
    assert "holds no rows" in refused("certify", blobs / "model.holdfast", tmp_path / "none.csv")
    assert "holds no rows" in refused(
        "simulate", blobs / "model.holdfast", tmp_path / "none.csv", "--label", "cloud"
    )
    assert "holds no rows" in refused(
        "train",
        tmp_path / "none.csv",
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--dry-run",
    )
    assert "the ending .png" in refused(
        "simulate",
        blobs / "model.holdfast",
        blobs / "queries.csv",
        "--label",
        "cloud",
        "--out",
        "x.xyz",
    )
    assert "the ending .csv" in refused(
        "certify", blobs / "model.holdfast", blobs / "queries.csv", "--out", "x.xyz"
    )
    assert "also a feature" in refused(
        "train", blobs / "train.csv", "--label", "x1", "--schema", blobs / "schema.toml"
    )
    assert "--epsilon 0.0" in refused("plan", "--epsilon", 0)
    assert "--flips 2.0" in refused("plan", "--flips", 2)
    (tmp_path / "ids.csv").write_text(
        "id,x1,x2,x1_squared,x2_squared,x1_cubed,x2_cubed,cloud\n,1,1,1,1,1,1,upper\n"
    )
    assert "without an id" in refused(
        "train",
        tmp_path / "ids.csv",
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--id",
        "id",
    )
    (tmp_path / "schema.toml").write_text("[columns.x1]\n")
    assert "the set of labels is public" in refused(
        "train", blobs / "train.csv", "--label", "cloud", "--schema", tmp_path / "schema.toml"
    )


def test_a_model_under_remove_cannot_be_simulated(blobs: Path) -> None:
    model = blobs / "unlearn.holdfast"
    run(
        "train",
        blobs / "train.csv",
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--model",
        "linear-box",
        "--neighbours",
        "remove",
        "--batch-size",
        5000,
        "--max-distance",
        2,
        "--out",
        model,
    )
    run("certify", model, blobs / "queries.csv")
    assert "unlearning" in refused(
        "simulate", model, blobs / "queries.csv", "--label", "cloud", "--out", blobs / "no.png"
    )


def test_a_model_without_a_schema_cannot_read_tables(tmp_path: Path) -> None:
    import torch

    x, y = torch.randn(20, 2), torch.arange(20) % 2
    trained = hf.train(
        torch.nn.Sequential(torch.nn.Linear(2, 2)),
        x,
        y,
        hf.Recipe(batch_size=20),
        max_distance=1,
        progress=False,
    )
    trained.save(tmp_path / "model")
    (tmp_path / "q.csv").write_text("a,b\n1,2\n")
    assert "trained without a schema" in refused("certify", tmp_path / "model", tmp_path / "q.csv")


@pytest.mark.parametrize(
    ("name", "batch_size", "clip"),
    [("credit-default", 8000, 0.3), ("credit-scoring", 12_000, 0.05)],
)
def test_from_a_real_csv_to_private_answers_in_three_commands(
    data_folder: Path,
    tmp_path: Path,
    name: str,
    batch_size: int,
    clip: float,
    figures: dict[str, str],
) -> None:
    """Private answers from a real CSV file take three commands.

    It has text categories, empty cells and word labels; whitening uses rows that are not trained
    on.
    """
    run("example", name, "--out", tmp_path, "--data", data_folder)
    table = (tmp_path / "train.csv").read_text()
    assert ',"yes"\n' in table
    assert ",," in table  # missing values
    model = tmp_path / "model.holdfast"
    run(
        "train",
        tmp_path / "train.csv",
        "--label",
        "default",
        "--schema",
        tmp_path / "schema.toml",
        "--public",
        tmp_path / "public.csv",
        "--model",
        "linear-box",
        "--zero-output",
        "--clip",
        clip,
        "--batch-size",
        batch_size,
        "--out",
        model,
    )
    certified = json.loads(
        run("certify", model, tmp_path / "queries.csv", "--label", "default", "--json")
    )
    simulated = json.loads(
        run(
            "simulate",
            model,
            tmp_path / "queries.csv",
            "--label",
            "default",
            "--epsilon",
            10,
            "--out",
            tmp_path / "s.png",
            "--json",
        )
    )
    at = simulated["number of queries"].index(1000)
    private = {
        mechanism: outcomes[at]["accuracy"]
        for mechanism, outcomes in simulated["mechanisms"].items()
    }
    figures[f"{name}, 1,000 queries at (10, 1e-5)"] = (
        f"accuracy {certified['accuracy']:.3f} without noise, "
        f"certified at 10: {certified['certified_share']['10']:.3f}; "
        + ", ".join(f"{mechanism} {accuracy:.3f}" for mechanism, accuracy in private.items())
    )
    assert certified["accuracy"] > 0.65
    assert certified["certified_share"]["10"] > 0.9
    assert private["BudgetedResponse"] > certified["accuracy"] - 0.01
    assert "of the private rows" in refused(
        "train",
        tmp_path / "train.csv",
        "--label",
        "default",
        "--schema",
        tmp_path / "schema.toml",
        "--public",
        tmp_path / "train.csv",
        "--model",
        "linear-box",
        "--batch-size",
        batch_size,
    )


@pytest.fixture
def served(blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a model, with a ledger whose budget is twenty answers."""
    monkeypatch.chdir(tmp_path)
    run(
        "budget",
        "create",
        "default",
        "--epsilon",
        2,
        "--queries",
        20,
        "--neighbours",
        "replace",
        "--share",
        "ada=0.5",
    )
    (tmp_path / "queries.csv").write_text(
        "\n".join((blobs / "queries.csv").read_text().splitlines()[:6]) + "\n"
    )
    return blobs / "model.holdfast"


def test_ask_a_table_a_row_and_standard_input(served: Path, tmp_path: Path) -> None:
    first = runner.invoke(app, ["ask", str(served), "queries.csv", "--analyst", "ada"])
    assert first.exit_code == 0
    assert set(first.stdout.split()) <= {"upper", "lower"}
    assert len(first.stdout.split()) == 5
    assert "enough is left for 5 more" in first.stderr
    again = runner.invoke(
        app,
        ["ask", str(served), "-", "--analyst", "ada"],
        input=(tmp_path / "queries.csv").read_text(),
    )
    assert again.stdout == first.stdout
    assert "cost 0," in again.stderr
    row = '{"x1": 1, "x2": 2, "x1_squared": 1, "x2_squared": 4, "x1_cubed": 1, "x2_cubed": 8}'
    (answer,) = json.loads(run("ask", served, "--row", row, "--analyst", "owner", "--json"))
    assert answer["label"] in ("upper", "lower")
    assert answer["cost"] > 0
    about = json.loads(run("ask", served, "queries.csv", "--analyst", "bob", "--preview", "--json"))
    assert (about["new"], about["fits"]) == (5, 14)
    run("ask", served, "queries.csv", "--analyst", "ada", "--out", "answers.csv")
    header, *rows = (tmp_path / "answers.csv").read_text().splitlines()
    asked = (tmp_path / "queries.csv").read_text().splitlines()
    assert header == (
        '"id","x1","x2","x1_squared","x2_squared","x1_cubed","x2_cubed","cloud","label"'
    )
    assert [row.split(",")[-1] for row in rows] == [f'"{name}"' for name in first.stdout.split()]
    ids = [row.split(",")[0].strip('"') for row in rows]
    assert ids == [row.split(",")[0].strip('"') for row in asked[1:]]


def test_ask_refuses_with_a_code_that_says_why(served: Path, blobs: Path, tmp_path: Path) -> None:
    poor = runner.invoke(app, ["ask", str(served), str(blobs / "queries.csv"), "--analyst", "ada"])
    assert poor.exit_code == 3
    assert "left for 'ada', by a share of the budget of 'default'" in poor.stderr
    assert "enough for 10" in poor.stderr
    assert "give either" in refused("ask", served, "queries.csv", "--row", "{}")
    assert "not JSON" in refused("ask", served, "--row", "x1=1")
    assert "no column 'x1'" in refused("ask", served, "--row", '{"y": 1}', "--analyst", "a")
    assert "no such file" in refused("ask", served, "nothing.csv")
    assert "no ledger here" in refused(
        "ask", served, "queries.csv", "--analyst", "a", "--ledger", f"sqlite:///{tmp_path}/other.db"
    )
    empty = runner.invoke(app, ["ask", str(served)], input="")
    assert empty.exit_code == 2
    assert json.loads(run("budget", "show", "default", "--json"))[0]["answers"] == 0


def test_a_model_is_signed_and_the_signature_required(
    served: Path, blobs: Path, tmp_path: Path
) -> None:
    assert "has no signature, and one is required" in refused(
        "ask", served, "queries.csv", "--analyst", "a", "--signed"
    )
    options = (
        "--label",
        "cloud",
        "--schema",
        blobs / "schema.toml",
        "--neighbours",
        "replace",
        "--model",
        "linear-box",
        "--max-distance",
        1,
    )
    run(
        "train",
        blobs / "train.csv",
        *options,
        "--out",
        "signed.holdfast",
        "--sign",
        "sqlite:///ledger.db",
    )
    run("ask", "signed.holdfast", "queries.csv", "--analyst", "a", "--signed")
    assert f"{tmp_path}/none.db: no ledger here" in refused(
        "train", blobs / "train.csv", *options, "--sign", f"sqlite:///{tmp_path}/none.db"
    )


def test_a_second_ledger_needs_a_flag(served: Path) -> None:
    create = ("budget", "create", "default", "--epsilon", 1, "--ledger", "sqlite:///second.db")
    assert "Budgets of two ledgers add up" in refused(*create)
    with pytest.warns(hf.errors.HoldfastWarning, match="their sum"):
        run(*create, "--beside-other-ledgers")


def test_budgets_are_shown_raised_verified_and_exported(served: Path, tmp_path: Path) -> None:
    run("ask", served, "queries.csv", "--analyst", "ada")
    shown = run("budget", "show")
    assert "default: (2, 1e-06) per record, replace" in shown
    assert "25.0%" in shown  # of the budget
    assert "50.0%" in shown  # of ada's share
    assert "nothing to change" in refused("budget", "raise", "default")
    assert "can only be raised" in refused("budget", "raise", "default", "--epsilon", 1.9)
    assert "expected ANALYST=PART" in refused("budget", "raise", "default", "--share", "ada")
    status = json.loads(
        run("budget", "raise", "default", "--epsilon", 3, "--share", "ada=1", "--json")
    )
    assert status["budget"] == {"epsilon": 3.0, "delta": 1e-6}
    assert status["shares"] == {"ada": 1.0}
    assert json.loads(run("budget", "verify", "--json")) == {"entries": 9, "intact": True}
    lines = [json.loads(line) for line in run("budget", "export").splitlines()]
    assert [line["kind"] for line in lines] == ["grant", "share", *["answer"] * 5, "grant", "share"]
    run("budget", "export", "--out", "entries.csv")
    assert len((tmp_path / "entries.csv").read_text().splitlines()) == 10
    assert "has a budget already" in refused("budget", "create", "default", "--epsilon", 1)


def test_the_statement_says_what_is_promised(served: Path, tmp_path: Path) -> None:
    run("ask", served, "queries.csv", "--analyst", "owner")
    text = run("statement", served)
    for words in (
        "# Privacy statement: default",
        "| ε (epsilon) | 2 |",
        "| δ (delta) | 1e-06 |",
        "one record",
        "`replace`: one record exchanged",
        "25.00% (5 answers, 0 releases)",
        "normaliser",
        "## Declared public",
        "the set of labels: upper, lower",
        "## Not protected",
    ):
        assert words in text
    run("statement", served, "--out", "statement.md")
    assert (tmp_path / "statement.md").read_text() == text


def test_shell_completion() -> None:
    script = runner.invoke(app, [], prog_name="holdfast", env={"_HOLDFAST_COMPLETE": "source_bash"})
    assert "complete -o default -F" in script.output
    words = {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "holdfast budget ",
        "COMP_CWORD": "2",
    }
    offered = runner.invoke(app, [], prog_name="holdfast", env=words)
    assert {"create", "show", "raise", "verify", "export"} <= set(offered.output.split())


def test_names_are_printed_as_they_are(served: Path) -> None:
    run("ask", served, "queries.csv", "--analyst", "[/red]")
    run("budget", "create", "ward[bold]7", "--epsilon", 1)
    shown = run("budget", "show")
    assert "[/red]" in shown
    assert "ward[bold]7" in shown


def test_no_cell_of_an_export_is_a_formula(tmp_path: Path) -> None:
    """No cell of an export is a formula.

    Names come from analysts and schemas, and a spreadsheet executes text that begins with = + - @
    or a tab.
    """
    from holdfast.cli.budget import _table
    from holdfast.ledger.entries import Entry
    from holdfast.preprocessing.tables import escape_formula

    rows = [
        Entry(1, "now", "answer", "=cmd", analyst, label=-1)
        for analyst in ("+1+1", "-2+3", "@SUM(A1)", "\tx", "ada", "\rx")
    ]
    lines = _table(rows).split("\n")[:-1]
    assert "'=cmd" in lines[0]
    for name in ("'+1+1", "'-2+3", "'@SUM(A1)", "'\tx", "ada"):
        assert any(f",{name}," in line for line in lines)
    assert all(",-1," in line for line in lines if "answer" in line), "numbers must stay numbers"
    assert [escape_formula(cell) for cell in ("-1", "+1.5e3", "1=2", -3, None, "-x")] == [
        "-1",
        "+1.5e3",
        "1=2",
        -3,
        None,
        "'-x",
    ]
