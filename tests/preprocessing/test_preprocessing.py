"""Preprocessing with public information: schemas, ranges and whitening.

Each row is treated separately, the rules are saved with the model, and they are never fitted on
private data. `zero_output` is tested here, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.layers import Network
from holdfast.preprocessing.columns import Category, Number

SCHEMA = """
classes = ["no", "yes"]

[columns.age]
range = [20, 80]
missing = 50

[columns.income]
range = [0, 100000]
log = true
missing = "flag"

[columns.job]
categories = ["clerk", "nurse", 3]
other = true
missing = "clerk"

[columns.raw]
"""


@pytest.fixture
def schema(tmp_path: Path) -> hf.Preprocessing:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return hf.Preprocessing.schema(tmp_path / "schema.toml")


TABLE = {
    "job": ["nurse", "3", "pilot", None],
    "age": [20, 50, None, 500],
    "income": [0, None, 100000, 50.0],
    "raw": [7.5, -1.0, 0.0, 2.0],
    "unused": [1, 2, 3, 4],
}


def test_a_schema_encodes_numbers_and_categories(schema: hf.Preprocessing) -> None:
    half = 2 * np.log1p(50) / np.log1p(100000) - 1
    expected = [
        [-1, -1, 0, 0, 1, 0, 0, 7.5],
        [0, 0, 1, 0, 0, 1, 0, -1.0],
        [0, 1, 0, 0, 0, 0, 1, 0.0],
        [1, half, 0, 1, 0, 0, 0, 2.0],
    ]
    for table in (TABLE, pa.table(TABLE)):
        assert torch.allclose(schema.apply(table), torch.tensor(expected, dtype=torch.float64))
    assert schema.labels(["yes", "no"]).tolist() == [1, 0]


def test_whole_numbers_and_booleans_name_categories() -> None:
    column = Category("sex", (1, 2), missing="flag")
    assert column.encode(np.array([1.0, 2.0, np.nan])).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert Category("smoker", (True, False)).encode(np.array([False, True])).tolist() == [
        [0, 1],
        [1, 0],
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw": [1.0, None, 2.0, 3.0]}, "column 'raw', row 2: a value is missing"),
        ({"raw": [1.0, float("inf"), 2.0, 3.0]}, "column 'raw', row 2: an infinite value"),
        ({"raw": ["a", "b", "c", "d"]}, "column 'raw', row 1: 'a' is not a number"),
        ({"raw": np.ma.masked_array([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 0])}, "masked arrays"),
        ({"raw": np.array(["2020-01-01"] * 4, dtype="datetime64[D]")}, "dates or durations"),
        ({"raw": [1.0]}, "different lengths"),
    ],
)
def test_what_the_schema_does_not_cover_is_refused(
    schema: hf.Preprocessing, change: dict, message: str
) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        schema.apply(TABLE | change)
    with pytest.raises(hf.errors.InvalidInput, match="has no column 'age'"):
        schema.apply({"job": ["clerk"]})
    with pytest.raises(hf.errors.InvalidInput, match="row 1: 'maybe' is not one of the classes"):
        schema.labels(["maybe"])
    with pytest.raises(hf.errors.InvalidInput, match="row 2: 'x' is not one of its categories"):
        Category("c", ("a",)).encode(np.array(["a", "x"], dtype=object))
    with pytest.raises(hf.errors.InvalidInput, match="row 2: a value is missing"):
        Category("c", ("a",)).encode(np.array(["a", None], dtype=object))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes = ['a'", "not a readable schema"),
        ("classes = ['a', 'a']\n[columns.x]", "each once"),
        ("classes = ['a']\n[columns.x]", "expected the list of all labels"),
        ("classes = ['a', 'b']", "one \\[columns.NAME\\] entry"),
        ("label = 'y'\n[columns.x]", "'label' is not understood"),
        ("[columns.x]\nrange = [1]", "expected \\[smallest, largest\\]"),
        ("[columns.x]\nrange = [2, 1]", "smaller number first"),
        ("[columns.x]\nrange = [1, inf]", "two finite numbers"),
        ("[columns.x]\nlog = true", "log=true needs a range"),
        ("[columns.x]\nmissing = 'mean'", "missing='mean'"),
        ("[columns.x]\ncategories = 'ab'", "expected a list"),
        ("[columns.x]\ncategories = []", "at least one, each once"),
        ("[columns.x]\ncategories = ['a']\nmissing = 'b'", "one of its categories"),
        ("[columns.x]\ncategories = ['a']\nrange = [0, 1]", "'range' is not understood"),
        ("[columns.x]\nmean = 3", "'mean' is not understood"),
        ("[columns.x]\nrange = [-1e308, 1e308]", "too wide"),
        (f"[columns.x]\nrange = [0, 1{'0' * 400}]", "two finite numbers"),
        ("[columns.x]\nrange = [0, 1]\nlog = 'no'", "expected true or false"),
        ("[columns.x]\ncategories = ['a']\nother = 'false'", "expected true or false"),
        ("[columns.x]\ncategories = [['a']]", "words or numbers"),
        ("classes = ['', 'a']\n[columns.x]", "each once"),
    ],
)
def test_senseless_schemas_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.Preprocessing.schema(tmp_path / "schema.toml")


def test_ranges_of_an_array_go_by_order() -> None:
    ranges = hf.Preprocessing.ranges({"a": (0.0, 1.0), "b": (-10.0, 10.0)})
    assert ranges.apply([[0.5, 5.0], [2.0, -99.0]]).tolist() == [[0.0, 0.5], [1.0, -1.0]]
    with pytest.raises(hf.errors.InvalidInput, match="expected a table with the columns"):
        ranges.apply([[1.0, 2.0, 3.0]])


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e5),
    st.booleans(),
)
def test_encoded_numbers_are_monotone_and_independent_of_other_rows(
    values: list[float], low: float, span: float, log: bool
) -> None:
    column = Number("x", low, low + span, log) if low < low + span else Number("x")
    together = column.encode(np.array(sorted(values)))[:, 0]
    assert (np.diff(together) >= 0).all()
    if column.low is not None:
        assert (abs(together) <= 1).all()
    assert together.tolist() == [
        float(column.encode(np.array([value]))[0, 0]) for value in sorted(values)
    ]


def public_rows(rows: int = 500, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 5, generator=generator, dtype=torch.float64)
        @ torch.randn(5, 5, generator=generator, dtype=torch.float64)
        + 3
    )


def test_whitening_centres_and_decorrelates() -> None:
    x = public_rows(20_000)
    white = hf.Preprocessing.whitening(x, shrinkage=1e-9, limit=100.0).apply(x)
    assert white.mean(0).abs().max() < 1e-9
    assert torch.allclose(torch.cov(white.T), torch.eye(5, dtype=torch.float64), atol=1e-3)
    assert hf.Preprocessing.whitening(x, limit=0.5).apply(x).abs().max() == 0.5


def test_whitening_treats_each_row_by_itself() -> None:
    x = public_rows(700)
    whitening = hf.Preprocessing.whitening(public_rows(seed=1))
    together = whitening.apply(x)
    shuffled = torch.randperm(len(x))
    assert torch.equal(whitening.apply(x[shuffled]), together[shuffled])
    assert torch.equal(whitening.apply(x[300:301]), together[300:301])


def recipe() -> hf.Recipe:
    return hf.Recipe(epochs=1, learning_rate=1.0, clip=0.1, batch_size=100)


@pytest.mark.parametrize("shared", [6, 19])
def test_a_few_rows_shared_with_the_whitening_are_a_warning(shared: int) -> None:
    """Of 19 rows or fewer, one record could otherwise stop the training alone."""
    x, y = public_rows(100).float(), torch.arange(100) % 2
    fitted = hf.Preprocessing.whitening(torch.cat([public_rows(300, seed=1), x[:shared].double()]))
    model = torch.nn.Sequential(torch.nn.Linear(5, 2))
    with pytest.warns(hf.errors.HoldfastWarning, match=r"NOT private: .* of the private rows"):
        hf.train(model, x, y, recipe(), max_distance=1, progress=False, preprocessing=fitted)


def test_one_record_equal_to_a_public_row_stops_no_training() -> None:
    """With 19 records, the row of one is more than 5% of them."""
    public = public_rows(300, seed=1)
    fitted = hf.Preprocessing.whitening(public)
    x, y = torch.cat([public_rows(18), public[:1]]).float(), torch.arange(19) % 2
    model = torch.nn.Sequential(torch.nn.Linear(5, 2))
    with pytest.warns(hf.errors.HoldfastWarning, match="of the private rows"):
        hf.train(model, x, y, recipe(), max_distance=1, progress=False, preprocessing=fitted)


@pytest.mark.parametrize(("shared", "refused"), [(0, False), (5, False), (20, True), (100, True)])
def test_whitening_fitted_on_private_rows_is_refused(shared: int, refused: bool) -> None:
    """Whitening is refused if 20 rows and more than 5% of the private rows were used to fit it.

    Shared rows are recognised even if they were given in another type.
    """
    x, y = public_rows(100).float(), torch.arange(100) % 2
    fitted = hf.Preprocessing.whitening(torch.cat([public_rows(300, seed=1), x[:shared].double()]))
    model = torch.nn.Sequential(torch.nn.Linear(5, 2))
    if refused:
        with pytest.raises(
            hf.errors.InvalidInput,
            match="of the private rows are among the rows that whitening was fitted on",
        ):
            hf.train(model, x, y, recipe(), max_distance=1, progress=False, preprocessing=fitted)
        with pytest.raises(hf.errors.InvalidInput, match="of the private rows"):
            hf.train_ensemble(
                lambda seed: model,
                x,
                y,
                recipe(),
                members=2,
                max_distance=1,
                progress=False,
                preprocessing=fitted,
            )
    else:
        hf.train(model, x, y, recipe(), max_distance=1, progress=False, preprocessing=fitted)


@pytest.mark.parametrize("members", [0, 3])
def test_preprocessing_is_saved_and_applied_to_queries(
    schema: hf.Preprocessing, tmp_path: Path, members: int
) -> None:
    generator = np.random.default_rng(0)
    count = 200
    table = {
        "job": generator.choice(["clerk", "nurse", "3", "pilot"], count),
        "age": generator.uniform(10, 90, count),
        "income": generator.lognormal(9, 2, count),
        "raw": generator.normal(size=count),
    }
    other = {
        name: values[::-1] if name == "raw" else values * 1.01 if name != "job" else values
        for name, values in table.items()
    }
    y = torch.from_numpy((table["age"] > 50).astype(np.int64))
    whitened = schema.whitened(other)

    def make_model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

    settings = {"max_distance": 2, "progress": False, "preprocessing": whitened}
    if members:
        trained = hf.train_ensemble(make_model, table, y, recipe(), members=members, **settings)
    else:
        trained = hf.train(make_model(0), table, y, recipe(), **settings)
    trained.save(tmp_path / "model.holdfast")
    loaded = hf.load(tmp_path / "model.holdfast")
    assert torch.equal(loaded.certify(other).distances, trained.certify(other).distances)
    assert torch.equal(loaded.preprocessing.apply(other), whitened.apply(other))
    assert loaded.preprocessing.classes == ("no", "yes")
    with pytest.raises(hf.errors.InvalidInput, match="queries has no column"):
        loaded.predict({"age": [1]})
    with pytest.raises(hf.errors.InvalidInput, match="of the private rows"):
        loaded.preprocessing.refuse_fitted_rows(  # the fitted rows are saved, too
            loaded.preprocessing.apply_part(other, "x")[1], len(other)
        )


def test_the_schemas_classes_and_the_models_must_agree(schema: hf.Preprocessing) -> None:
    table = {"job": ["clerk"] * 10, "age": [30] * 10, "income": [1.0] * 10, "raw": [0.0] * 10}
    model = torch.nn.Sequential(torch.nn.Linear(8, 5))
    with pytest.raises(hf.errors.InvalidInput, match="5 classes; the schema names 2"):
        hf.train(
            model,
            table,
            torch.arange(10) % 2,
            recipe(),
            max_distance=1,
            progress=False,
            preprocessing=schema,
        )
    with pytest.raises(hf.errors.InvalidInput, match="5 classes; the schema names 2"):
        hf.train_ensemble(
            lambda _: model,
            table,
            torch.arange(10) % 2,
            recipe(),
            members=2,
            max_distance=1,
            progress=False,
            preprocessing=schema,
        )


def test_names_with_points_survive_a_file(tmp_path: Path) -> None:
    versions = hf.Preprocessing((Category("v", ("1.0.0", "2.0.0"), other=True),))
    x, y = {"v": ["1.0.0", "2.0.0"] * 20}, torch.arange(40) % 2
    trained = hf.train(
        torch.nn.Sequential(torch.nn.Linear(3, 2)),
        x,
        y,
        recipe(),
        max_distance=1,
        progress=False,
        preprocessing=versions,
    )
    trained.save(tmp_path / "m")
    assert torch.equal(hf.load(tmp_path / "m").preprocessing.apply(x), versions.apply(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda: hf.Preprocessing.whitening([[1.0, 1.0], [1.0, 1.0]]),
        lambda: hf.Preprocessing.whitening([[1.0]]),
        lambda: hf.Preprocessing.whitening(public_rows(), shrinkage=0),
        lambda: hf.Preprocessing.whitening(public_rows()).whitened(public_rows()),
        lambda: hf.Preprocessing.ranges({}),
        lambda: hf.Preprocessing.whitening(public_rows()).apply([[1.0, 2.0]]),
    ],
)
def test_invalid_whitening_and_ranges_are_refused(call) -> None:
    with pytest.raises(hf.errors.InvalidInput):
        call()


def logits(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the logits as holdfast computes them, in its fixed order of addition.

    A library's order need not cancel to exactly 0.
    """
    network = Network.of(model, tuple(x.shape[1:]))
    box = {name: Interval.point(value) for name, value in network.parameters.items()}
    return network.outputs_of(
        network.forward(network.first_input(x.detach()), box), box
    ).logits.lower


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Tanh])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_output_answers_exactly_zero(outputs: int, activation, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(7, 100), activation(), torch.nn.Linear(100, outputs)
    ).to(dtype)
    start = hf.zero_output(model)
    x = torch.randn(500, 7, dtype=dtype) * 10
    assert not logits(start, x).any()
    assert torch.allclose(start(x), torch.zeros(500, outputs, dtype=dtype), atol=1e-5)
    assert model(x).any()  # the original is unchanged
    assert len(start[2].weight.unique()) > 3
    loss = "binary_cross_entropy" if outputs == 1 else "cross_entropy"
    trained = hf.train(
        start,
        x,
        torch.arange(500) % 2,
        hf.Recipe(epochs=1, clip=0.1, batch_size=500, loss=loss),
        max_distance=1,
        progress=False,
    )
    assert (trained.model(x) != 0).any()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    largest=st.sampled_from([0.5, 3.0, 1000.0]),
    outputs=st.integers(1, 3),
)
def test_an_active_start_is_active_on_every_input(seed: int, largest: float, outputs: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(9, 6), torch.nn.ReLU(), torch.nn.Linear(6, outputs))
    start = hf.zero_output(model, active=largest)
    inputs = largest * (2 * torch.rand(200, 9) - 1)
    corners = largest * torch.sign(start[0].weight)
    for x in (inputs, corners, -corners):
        assert bool((start[0](x) > 0.4).all())
        assert not logits(start, x).any()


def test_an_active_start_certifies_farther() -> None:
    y = torch.randint(0, 2, (400,))
    x = (torch.randn(400, 20) + 0.3 * (2 * y[:, None] - 1)).clamp(-3, 3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
    recipe = hf.Recipe(clip=0.001, batch_size=400, learning_rate=0.5, loss="binary_cross_entropy")
    reached = []
    for start in (hf.zero_output(model), hf.zero_output(model, active=3.0)):
        certified = hf.train(start, x, y, recipe, max_distance=200, progress=False)
        certificate = certified.certify((torch.randn(200, 20) + 0.3).clamp(-3, 3))
        reached.append(float(certificate.distances.double().mean()))
    assert reached[1] > 1.15 * reached[0]


def test_an_active_start_needs_a_size_and_a_bias() -> None:
    layers = [torch.nn.Linear(4, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1)]
    with pytest.raises(hf.errors.UnsupportedModel, match="bias"):
        hf.zero_output(torch.nn.Sequential(*layers), active=1.0)
    for size in (0, -1.0, float("inf"), float("nan"), "3"):
        with pytest.raises(hf.errors.InvalidInput, match="active="):
            hf.zero_output(torch.nn.Sequential(torch.nn.Linear(4, 2), *layers[1:]), active=size)


def test_zero_output_of_other_models() -> None:
    for front in ([], [torch.nn.Flatten()]):
        assert not hf.zero_output(torch.nn.Sequential(*front, torch.nn.Linear(4, 2)))(
            torch.randn(9, 4)
        ).any()
    for model in (
        torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()),
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)),
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.Flatten(), torch.nn.Linear(8, 2)),
        torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
        ),
    ):
        with pytest.raises(hf.errors.UnsupportedModel, match="zero_output"):
            hf.zero_output(model)


def test_whitening_refuses_no_row_for_its_size() -> None:
    """Whitening accepts rows of any size.

    Sums that overflow with both signs would be NaN, so rows are first clipped to a public bound.
    """
    rules = hf.Preprocessing.whitening(0.01 * public_rows())
    for size in (1e300, 1.7e308):
        for signs in ([1, 1, 1, 1], [1, -1, 1, -1]):
            row = (
                np.array([signs[: public_rows().shape[1]] + [1] * (public_rows().shape[1] - 4)])
                * size
            )
            found = rules.apply(row)
            assert bool(found.isfinite().all())
            assert float(found.abs().max()) <= 3.0
