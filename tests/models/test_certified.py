"""Certified models: predictions, certificates, bounds, frozen prefixes, overflow, diagnosis."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf


def _data(n: int = 200, width: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (n,), generator=generator)
    return torch.randn(n, width, generator=generator) + 2.0 * (2 * y[:, None] - 1), y


@pytest.fixture(scope="module")
def certified() -> hf.Certified:
    torch.manual_seed(0)
    x, y = _data(2000)
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    recipe = hf.Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=2000)
    return hf.train(model, x, y, recipe, max_distance=30, progress=False)


def test_labels_and_the_torch_model_agree_away_from_ties(certified) -> None:
    queries = torch.randn(500, 2) * 3
    labels = certified.predict(queries)
    with torch.no_grad():
        logits = certified.model(queries)
    clear = (logits[:, 0] - logits[:, 1]).abs() > 1e-5
    assert torch.equal(labels[clear], logits.argmax(1)[clear])
    assert torch.equal(certified.certify(queries).labels, labels)


def test_progress_changes_nothing(certified) -> None:
    queries = torch.randn(1200, 2) * 3  # more than the rows between two advances of the bar
    found, shown = certified.certify(queries), certified.certify(queries, progress=True)
    assert torch.equal(found.labels, shown.labels)
    assert torch.equal(found.distances, shown.distances)
    assert found.reach == shown.reach


def test_the_users_model_is_left_as_it_was() -> None:
    x, y = _data()
    model = nn.Sequential(nn.Linear(2, 2))
    before = model[0].weight.detach().clone()
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=200, clip=0.1), max_distance=1, progress=False
    )
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(certified.model[0].weight, before)
    assert certified.bounds(0).contains(certified.model.state_dict())


def test_distances_are_ordered_and_capped(certified) -> None:
    certificate = certified.certify(torch.linspace(-3, 3, 400)[:, None].expand(-1, 2))
    assert int(certificate.distances.max()) == 30
    assert int(certificate.distances.min()) < 5
    assert set(certificate.labels.tolist()) == {0, 1}
    assert certificate.share(1) >= certificate.share(10) >= certificate.share(30)
    assert certificate.nested
    assert certificate.votes is None
    assert certificate.neighbours is hf.Neighbours.ADD_REMOVE
    assert certificate.labels.dtype == certificate.distances.dtype == torch.int64


def test_a_sparse_grid_gives_ranks() -> None:
    x, y = _data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2))
    recipe = hf.Recipe(batch_size=200, clip=0.1)
    dense = hf.train(model, x, y, recipe, max_distance=60, progress=False)
    sparse = hf.train(model, x, y, recipe, distances=[1, 5, 20, 60], progress=False)
    queries = torch.randn(200, 2) * 2
    value = dense.certify(queries).distances
    rank = sum((value >= k).long() for k in (1, 5, 20, 60))
    assert torch.equal(sparse.certify(queries).distances, rank)
    assert len(rank.unique()) > 3
    assert sparse.bounds(20).encloses(dense.bounds(20))


def test_a_query_does_not_depend_on_the_queries_beside_it(certified) -> None:
    queries = torch.randn(certified.network.block_rows + 100, 2)
    together = certified.certify(queries)
    rows = certified.network.block_rows
    for i in (0, rows - 1, rows, len(queries) - 1):
        alone = certified.certify(queries[i : i + 1])
        assert alone.labels[0] == together.labels[i]
        assert alone.distances[0] == together.distances[i]


@pytest.mark.parametrize("huge", [[3e38, 3e38], [3e38, -3e38]])
def test_overflow_at_query_time_means_not_certified(huge) -> None:
    """An overflowing query is not certified and does not affect the other queries."""
    x, y = _data()
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].weight.mul_(10)
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=200, clip=0.01), max_distance=3, progress=False
    )
    queries = torch.tensor([[5.0, 5.0], huge, [-5.0, -5.0]])
    certificate = certified.certify(queries)
    assert certificate.distances[1] == 0
    clean = certified.certify(queries[[0, 2]])
    assert torch.equal(certificate.distances[[0, 2]], clean.distances)
    assert torch.equal(certificate.labels[[0, 2]], clean.labels)
    assert bool((clean.distances > 0).all())


def test_ties_take_the_lowest_index_and_distance_zero() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=4, clip=0.1), max_distance=2, progress=False
    )
    certificate = certified.certify(torch.randn(5, 2))
    assert certificate.labels.tolist() == [0] * 5
    assert certificate.distances.tolist() == [0] * 5


def test_one_logit_at_zero_is_label_zero() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    recipe = hf.Recipe(batch_size=4, clip=0.1, loss="binary_cross_entropy")
    certified = hf.train(
        model, torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), recipe, max_distance=2, progress=False
    )
    assert certified.predict(torch.randn(3, 2)).tolist() == [0, 0, 0]


def test_queries_of_the_wrong_shape(certified) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=r"expected \(number of queries, 2\)"):
        certified.certify(torch.zeros(3, 4))
    with pytest.raises(hf.errors.InvalidInput, match="NaN"):
        certified.certify(torch.full((1, 2), float("nan")))
    assert len(certified.certify(torch.zeros(0, 2))) == 0


def test_bounds_of_a_distance_that_was_not_run(certified) -> None:
    with pytest.raises(
        hf.errors.InvalidInput,
        match=r"k=31: expected 0 or one of the distances that were run: 1, 2, ..., 30",
    ):
        certified.bounds(31)
    with pytest.raises(hf.errors.InvalidInput, match="no parameter '0.bias'"):
        certified.bounds(1).contains({"0.weight": torch.zeros(6, 2)})
    with pytest.raises(
        hf.errors.InvalidInput, match=r"'0.weight' has shape \(1, 2\): expected \(6, 2\)"
    ):
        certified.bounds(1).contains(
            {name: value[:1] for name, value in certified.bounds(1).lower.items()}
        )


class _Backbone(nn.Module):
    """A layer that holdfast cannot bound, which is allowed in a frozen prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(2, 7, batch_first=True)

    def forward(self, x):
        return self.inner(x[:, None, :])[0][:, 0]


def test_frozen_leading_layers_are_public_whatever_they_are() -> None:
    x, y = _data()
    torch.manual_seed(0)
    backbone = _Backbone().requires_grad_(False)
    head = nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 2))
    recipe = hf.Recipe(batch_size=200, clip=0.1)
    certified = hf.train(
        nn.Sequential(backbone, head), x, y, recipe, max_distance=3, progress=False
    )
    with torch.no_grad():
        features = certified.network.front(x)
    apart = hf.train(nn.Sequential(head), features, y, recipe, max_distance=3, progress=False)
    for k in (0, 3):
        renamed = {
            name.replace("0.", "1.", 1): value for name, value in apart.bounds(k).lower.items()
        }
        assert certified.bounds(k).contains(renamed)
    assert set(certified.bounds(1).box) == {"1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"}


def test_features_do_not_depend_on_the_records_beside_them() -> None:
    """Features do not depend on other records even if a layer depends on the batch position.

    The frozen front processes such records one by one.
    """

    class PositionDependent(nn.Module):
        def forward(self, x):
            return x + torch.arange(len(x))[:, None]

    x, y = _data(100)
    model = nn.Sequential(PositionDependent(), nn.Linear(2, 2))
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=100, clip=0.1), max_distance=1, progress=False
    )
    assert torch.equal(certified.network.front(x), x)


def test_a_module_used_twice_becomes_two_layers() -> None:
    x, y = _data()
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 2))
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=200, clip=0.1), max_distance=1, progress=False
    )
    assert [layer.name for layer in certified.network.layers] == ["0", "1", "2", "3", "4"]
    with torch.no_grad():
        assert torch.equal(certified.model(x).argmax(1), certified.predict(x))


def test_the_users_model_can_change_without_effect() -> None:
    x, y = torch.randn(20, 1, 4, 4), torch.arange(20) % 2
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=20, clip=0.1), max_distance=1, progress=False
    )
    before = certified.network.outputs_of(
        certified.network.forward(certified.network.first_input(x), certified.bounds(1).box),
        certified.bounds(1).box,
    ).logits
    model[1].divisor_override = 1
    after = certified.network.outputs_of(
        certified.network.forward(certified.network.first_input(x), certified.bounds(1).box),
        certified.bounds(1).box,
    ).logits
    assert torch.equal(before.lower, after.lower)
    certified.bounds(0).lower["3.weight"].zero_()
    assert certified.bounds(1).encloses(certified.bounds(0))


def test_a_frozen_layer_in_the_middle_is_a_point() -> None:
    x, y = _data()
    model = nn.Sequential(
        nn.Linear(2, 4),
        nn.ReLU(),
        nn.Linear(4, 4).requires_grad_(False),
        nn.ReLU(),
        nn.Linear(4, 2),
    )
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=200, clip=0.1), max_distance=2, progress=False
    )
    assert set(certified.bounds(1).box) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert torch.equal(certified.model[2].weight, model[2].weight)


def test_diagnosis_names_step_layer_and_remedy(certified) -> None:
    diagnosis = certified.diagnose()
    assert diagnosis.distance == 16
    assert diagnosis.step in (1, 2)
    assert diagnosis.parameter in certified.bounds(1).box
    assert diagnosis.parameter in str(diagnosis)
    assert f"step {diagnosis.step}" in str(diagnosis)
    assert diagnosis.advice


def test_diagnosis_tells_causes_apart() -> None:
    x, y = _data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    many = hf.train(
        model,
        x,
        y,
        hf.Recipe(epochs=8, learning_rate=2.0, clip=0.5, batch_size=200),
        max_distance=5,
        progress=False,
    )
    assert any(line.startswith("steps:") for line in many.diagnose().advice)
    one = hf.train(model, x, y, hf.Recipe(batch_size=200, clip=0.5), max_distance=5, progress=False)
    assert any(line.startswith("moves:") for line in one.diagnose().advice)


def test_certificates_refuse_nonsense() -> None:
    good = torch.tensor([0, 1])
    with pytest.raises(hf.errors.InvalidInput, match="expected one int64 per query"):
        hf.Certificate(good.float(), good, hf.Neighbours.REPLACE, 2)
    with pytest.raises(hf.errors.InvalidInput, match="expected as many"):
        hf.Certificate(good, good[:1], hf.Neighbours.REPLACE, 2)
    with pytest.raises(hf.errors.InvalidInput, match="must lie in"):
        hf.Certificate(good + 1, good, hf.Neighbours.REPLACE, 2)
    with pytest.raises(hf.errors.InvalidInput, match="expected an int64 tensor"):
        hf.Certificate([0, 1], good, hf.Neighbours.REPLACE, 2)
    with pytest.raises(hf.errors.InvalidInput, match="neighbours='near'"):
        hf.Certificate(good, good, "near", 2)
    with pytest.raises(hf.errors.InvalidInput, match="no queries"):
        hf.Certificate(good[:0], good[:0], hf.Neighbours.REPLACE, 2).share(1)
