"""HoldfastClassifier works with the tools of scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE

RECIPE = hf.LinearRecipe(batch_size=400, travel=20.0, clip=0.3)
BOXES = hf.Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=400)
LABELS = ["ill", "well"]

# Checks that fail because of the noise. Without noise all of them pass.
FRESH_NOISE = (
    "compares the answers of two fits, but each fit is a separate training run with "
    "freshly drawn answers"
)
EXPECTED_FAILED_CHECKS = {
    "check_classifiers_train": (
        "requires 83% accuracy with 200 records; 3,000 private answers about so few records are "
        "necessarily mostly noise"
    ),
    "check_fit_idempotent": FRESH_NOISE,
    "check_supervised_y_2d": FRESH_NOISE,
    "check_classifier_data_not_an_array": FRESH_NOISE,
    "check_pipeline_consistency": FRESH_NOISE,
}


class InfersLabelsFromY(hf.HoldfastClassifier):
    """Infers the set of labels from y, as scikit-learn's checks expect.

    The estimator itself refuses to do so.
    """

    def fit(self, X, y, ids=None):  # noqa: N803
        self._labels = np.unique(np.asarray(y))
        return super().fit(X, y, ids)

    def _classes(self):
        if self.classes is not None:
            return super()._classes()
        if len(self._labels) < 2:
            raise hf.errors.InvalidInput("expected at least 2 classes; y has one class")
        return self._labels


class WithStrictTags(InfersLabelsFromY):
    """Claims to be deterministic with good scores, so that every check is run."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.classifier_tags.poor_score = False
        return tags


class KeepsTheLabel:
    """An entropy source that never flips an answer."""

    def draw(self) -> int:
        return SCALE - 1


class WithoutNoise(WithStrictTags):
    """Answers without noise, so that failures cannot be blamed on it."""

    def _predictor(self):
        predictor = super()._predictor()
        predictor._entropy = KeepsTheLabel()
        return predictor


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return the address of a ledger with a budget that no test exhausts."""
    address = f"sqlite:///{tmp_path}/ledger.db"
    hf.Ledger(address).create_budget("default", hf.Budget(1000.0, 0.1), queries=20_000)
    return address


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    y = chance.integers(0, 2, 400)
    return chance.normal(size=(400, 2)) + 2.0 * (2 * y[:, None] - 1), np.array(["ill", "well"])[y]


def outcome(estimator: hf.HoldfastClassifier, **options: object) -> dict[str, set[str]]:
    with warnings.catch_warnings():
        # All checks spend one budget with a model each; the warning about this is tested below.
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None, **options)
    statuses: dict[str, set[str]] = {}
    for result in results:
        statuses.setdefault(result["status"], set()).add(result["check_name"])
    return statuses


def test_scikit_learns_checks_without_noise(address: str, figures: dict[str, str]) -> None:
    statuses = outcome(WithoutNoise(ledger=address, max_distance=5))
    assert "failed" not in statuses
    assert statuses["skipped"] <= {"check_array_api_input", "check_classifier_data_not_an_array"}
    assert {
        "check_pipeline_consistency",
        "check_fit_idempotent",
        "check_classifiers_train",
    } <= statuses["passed"]
    figures["scikit-learn's checks, without noise"] = (
        f"{len(statuses['passed'])} passed, {len(statuses['skipped'])} skipped, none failed"
    )


def test_scikit_learns_checks_with_noise(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/ledger.db"
    hf.Ledger(address).create_budget("default", hf.Budget(10.0, 1e-5), queries=6000)
    statuses = outcome(
        WithStrictTags(ledger=address, max_distance=5),
        expected_failed_checks=EXPECTED_FAILED_CHECKS,
    )
    assert "failed" not in statuses
    assert "check_classifiers_train" in statuses["xfail"]


def test_tags_are_honest() -> None:
    tags = hf.HoldfastClassifier().__sklearn_tags__()
    assert tags.non_deterministic
    assert tags.classifier_tags.poor_score


def test_predict_is_private_and_spends(address: str, clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(recipe=RECIPE, ledger=address, classes=["well", "ill"]).fit(
        x, y
    )
    ledger = hf.Ledger(address)
    assert ledger.status("default").answers == 0  # training spends nothing
    answers = classifier.predict(x[:50])
    assert set(answers) <= {"ill", "well"}
    assert ledger.status("default").answers == 50
    assert (classifier.predict(x[:50]) == answers).all()
    assert ledger.status("default").answers == 50
    assert (classifier.predict_plain(x) == y).mean() > 0.9
    assert list(classifier.classes_) == ["well", "ill"]
    assert classifier.score(x[:50], y[:50]) == (answers == y[:50]).mean()


def test_predict_needs_a_ledger_and_a_budget(tmp_path: Path, clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(recipe=RECIPE, max_distance=2, classes=LABELS)
    with pytest.raises(NotFittedError):
        classifier.predict(x)
    classifier.fit(x, y)
    with pytest.raises(hf.errors.InvalidInput, match="needs a ledger"):
        classifier.predict(x[:1])
    classifier.set_params(ledger=f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(hf.errors.InvalidInput, match="no ledger here"):
        classifier.predict(x[:1])
    with pytest.raises(hf.errors.InvalidInput, match="SparseVector may answer no label"):
        classifier.set_params(mechanism=hf.SparseVector(5.0, 1e-6, 3, 100)).predict(x[:1])


def test_the_set_of_labels_is_never_read_off_the_records(address: str, clouds) -> None:
    """A single record labelled "rare" neither adds an answer nor changes the message."""
    x, y = clouds
    said = set()
    for labels in (y, np.where(np.arange(len(y)) == 7, "rare", y)):
        with pytest.raises(
            hf.errors.InvalidInput, match=r"list all of them: HoldfastClassifier\(classes=\[...\]\)"
        ) as caught:
            hf.HoldfastClassifier(recipe=RECIPE, ledger=address, max_distance=2).fit(x, labels)
        said.add(str(caught.value))
    assert len(said) == 1
    declared = hf.HoldfastClassifier(
        recipe=RECIPE, ledger=address, max_distance=2, classes=["ill", "well", "unknown"]
    ).fit(x, y)
    assert len(declared.classes_) == 3
    with pytest.raises(hf.errors.InvalidInput, match="y holds .well."):
        hf.HoldfastClassifier(recipe=RECIPE, classes=["ill", "dead"]).fit(x, y)


def test_the_default_recipe_follows_the_ledgers_budget(tmp_path: Path, clouds) -> None:
    x, y = clouds
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("default", hf.Budget(2.0, 1e-6), queries=50)
    classifier = hf.HoldfastClassifier(records=400, classes=LABELS, ledger=ledger).fit(x, y)
    about = {"records": 400, "features": 2, "classes": 2}
    wanted = hf.LinearRecipe.for_budget(**about, budget=hf.Budget(2.0, 1e-6), queries=50)
    found = classifier.certified_.recipe
    assert (found.travel, found.clip, found.batch_size) == (wanted.travel, wanted.clip, 400)
    assert (classifier.predict(x[:50]) == y[:50]).mean() > 0.7
    told = classifier.set_params(budget=hf.Budget(9.0, 1e-6), queries=1).fit(x, y)
    assert told.certified_.recipe.travel > found.travel


def test_networks_are_trained_with_boxes(address: str, clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(
        "linear-box", records=400, ledger=address, classes=LABELS
    ).fit(x, y)
    assert isinstance(classifier.certified_, hf.Certified)
    assert classifier.certified_.distances[-1] == 50
    assert (classifier.predict(x[:50]) == y[:50]).mean() > 0.8


def test_params_clone_and_pickle(address: str, clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(
        "mlp:8", recipe=BOXES, max_distance=3, classes=LABELS, ledger=hf.Ledger(address)
    ).fit(x, y)
    assert clone(classifier).get_params()["recipe"] == BOXES
    assert classifier.set_params(max_distance=4).get_params()["max_distance"] == 4
    answers = classifier.predict(x[:5])
    key = next(
        Path(address.removeprefix("sqlite:///")).parent.joinpath("home").glob("*.key")
    ).read_text()
    content = pickle.dumps(classifier)
    assert bytes.fromhex(key) not in content
    assert key.encode() not in content
    again = pickle.loads(content)
    assert (again.predict(x[:5]) == answers).all()  # reopens the ledger by its address
    assert hf.Ledger(address).status("default").answers == 5


def test_the_recipe_is_searched_like_any_other_parameter(clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(recipe=RECIPE, max_distance=2, classes=LABELS)
    search = GridSearchCV(
        classifier,
        {"recipe__clip": [0.1, 0.3], "recipe__travel": [5.0], "max_distance": [1]},
        scoring=lambda fitted, features, labels: (fitted.predict_plain(features) == labels).mean(),
        cv=hf.records.HashKFold(3),
    )
    search.fit(x, y, groups=np.arange(400))
    best = search.best_estimator_.recipe
    assert (best.clip, best.travel, best.batch_size) in {(0.1, 5.0, 400), (0.3, 5.0, 400)}
    assert classifier.recipe == RECIPE
    assert classifier.get_params()["recipe__clip"] == 0.3
    assert "recipe__clip" not in classifier.get_params(deep=False)
    assert hf.HoldfastClassifier().set_params(recipe__clip=0.2).recipe.clip == 0.2
    with pytest.raises(hf.errors.InvalidInput, match="recipe has no 'clips'"):
        classifier.set_params(recipe__clips=1.0)


def test_in_a_pipeline_with_public_scaling(address: str, clouds) -> None:
    x, y = clouds
    public = np.random.default_rng(1).normal(size=(500, 2)) * 3
    # Fitted on public data and not refitted on private data.
    scaler = FrozenEstimator(StandardScaler().fit(public))
    pipeline = make_pipeline(
        scaler,
        hf.HoldfastClassifier(recipe=RECIPE, ledger=address, max_distance=10, classes=LABELS),
    ).fit(x, y)
    assert (pipeline.predict(x[:100]) == y[:100]).mean() > 0.8


def test_refits_in_a_cross_validation_are_charged_and_warned_about(address: str, clouds) -> None:
    x, y = clouds
    classifier = hf.HoldfastClassifier(
        recipe=RECIPE, ledger=address, max_distance=5, classes=LABELS
    )
    with pytest.warns(
        hf.errors.HoldfastWarning,
        match=(
            "Folds of a cross-validation need hf.records.HashKFold, and their scores are not "
            "private"
        ),
    ) as caught:
        scores = cross_val_score(
            classifier, x, y, cv=hf.records.HashKFold(4), groups=np.arange(400)
        )
    assert len(scores) == 4
    assert len(caught) == 3  # one per fold from the second on
    assert hf.Ledger(address).status("default").answers == 400


def test_tables_and_ensembles(tmp_path: Path, address: str) -> None:
    pa = pytest.importorskip("pyarrow")
    chance = np.random.default_rng(0)
    old = chance.integers(0, 2, 300)
    table = pa.table(
        {
            "age": np.where(old, 70.0, 30.0) + chance.normal(size=300),
            "job": np.where(old, "retired", "clerk").tolist(),
        }
    )
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nrange = [0, 100]\n\n[columns.job]\ncategories = ["clerk", "retired"]\n'
    )
    classifier = hf.HoldfastClassifier(
        recipe=hf.LinearRecipe(travel=20.0, clip=0.3, batch_size=100),
        preprocessing=hf.Preprocessing.schema(tmp_path / "schema.toml"),
        members=3,
        max_distance=5,
        ledger=address,
        classes=[0, 1],
    ).fit(table, old)
    assert (classifier.predict_plain(table) == old).mean() > 0.95
    assert (classifier.predict(table.slice(0, 100)) == old[:100]).mean() > 0.7
    assert "column 'job': categories clerk, retired" in classifier.statement()
    assert "3 members" in classifier.statement()


def test_parameters_that_change_after_fit_are_followed(
    tmp_path: Path, address: str, clouds
) -> None:
    x, y = clouds
    other = hf.Ledger(f"sqlite:///{tmp_path}/other.db")
    with pytest.warns(hf.errors.HoldfastWarning, match="add up"):
        other.create_budget("default", hf.Budget(10.0), queries=100, beside_other_ledgers=True)
    classifier = hf.HoldfastClassifier(
        recipe=RECIPE, ledger=address, max_distance=2, classes=LABELS
    ).fit(x, y)
    classifier.predict(x[:3])
    classifier.set_params(ledger=other.address, mechanism=hf.StableResponse(0.2)).predict(x[:3])
    assert other.status("default").spent == 0.6
    assert hf.Ledger(address).status("default").answers == 3
    with pytest.raises(hf.errors.InvalidInput):
        classifier.set_params(classes=["cat", "dog"]).fit(x, y)
    assert list(classifier.classes_) == ["ill", "well"]


def test_the_schemas_classes_are_the_classes(tmp_path: Path, address: str) -> None:
    (tmp_path / "schema.toml").write_text(
        'classes = ["no", "yes"]\n\n[columns.age]\nrange = [0, 100]\n'
    )
    schema = hf.Preprocessing.schema(tmp_path / "schema.toml")
    table, y = {"age": [20.0, 30.0, 70.0, 80.0] * 20}, ["yes", "yes", "no", "no"] * 20
    recipe = hf.LinearRecipe(travel=20.0, clip=0.3, batch_size=80)
    with pytest.raises(hf.errors.InvalidInput, match="in the same order"):
        hf.HoldfastClassifier(recipe=recipe, preprocessing=schema, classes=["yes", "no"]).fit(
            table, y
        )
    classifier = hf.HoldfastClassifier(
        recipe=recipe, preprocessing=schema, ledger=address, max_distance=2
    ).fit(table, y)
    assert (classifier.predict_plain(table) == np.array(y)).all()
    assert "the set of labels: no, yes" in classifier.statement()
    with pytest.raises(hf.errors.InvalidInput, match="single record"):
        classifier.predict({"age": 20.0})
    assert hf.Ledger(address).status("default").answers == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": "fast"},
        {"recipe": BOXES},
        {"model": "linear-box"},
        {"records": 0, "recipe": None},
        {"queries": 0, "recipe": None},
        {"model": "linear-box", "recipe": BOXES, "max_distance": 0},
        {"preprocessing": 5},
        {"classes": 5},
        {"classes": ["ill"]},
        {"classes": ["ill", "ill", "well"]},
    ],
    ids=str,
)
def test_bad_settings_are_named(clouds, settings: dict) -> None:
    with pytest.raises(hf.errors.InvalidInput):
        hf.HoldfastClassifier(
            **{"recipe": RECIPE, "max_distance": 2, "classes": LABELS, **settings}
        ).fit(*clouds)
