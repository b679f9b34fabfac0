"""Models, recipes and neighbouring data sets for the end-to-end tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.networks.certified import Certified
from holdfast.networks.loop import run
from holdfast.networks.training import prepare_jobs

REACH = 3  # the largest number of moves


@dataclass(frozen=True)
class Case:
    """A model and a recipe under one neighbour relation.

    Records are drawn around class centres, so that boxes can certify.
    """

    name: str
    layers: tuple
    classes: int = 2
    loss: str = "cross_entropy"
    shape: tuple[int, ...] = (4,)
    records: int = 60
    recipe: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    relation: hf.Neighbours = hf.Neighbours.ADD_REMOVE

    def __str__(self) -> str:
        return f"{self.name}-{self.relation.value}-{str(self.dtype)[6:]}"

    def model(self, seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        model = nn.Sequential(*(make() for make in self.layers)).to(self.dtype).eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2.0)
        return model

    def full_recipe(self) -> hf.Recipe:
        settings = {
            "epochs": 2,
            "learning_rate": 0.5,
            "clip": 0.05,
            "loss": self.loss,
        } | self.recipe
        return hf.Recipe(**settings, batch_size=self.records // settings.get("batches", 1))

    def records_from(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, labels and ids."""
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(0, self.classes, (self.records,), generator=generator)
        return self.features(y, generator), y, torch.arange(self.records)

    def features(self, y: Tensor, generator: torch.Generator) -> Tensor:
        centres = 1.5 * torch.randn(
            self.classes, *self.shape, generator=torch.Generator().manual_seed(7)
        )
        return (centres[y] + 0.7 * torch.randn(len(y), *self.shape, generator=generator)).to(
            self.dtype
        )

    def queries(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 + seed)
        return self.features(torch.randint(0, self.classes, (16,), generator=generator), generator)

    def train(
        self, model: nn.Module, x: Tensor, y: Tensor, ids: Tensor, reach: int = REACH
    ) -> Certified:
        given = ids if self.relation is hf.Neighbours.REPLACE else None
        return hf.train(
            model,
            x,
            y,
            self.full_recipe(),
            neighbours=self.relation,
            max_distance=reach,
            ids=given,
            progress=False,
        )

    def retrain(self, model: nn.Module, x: Tensor, y: Tensor, ids: Tensor) -> Certified:
        """Train without boxes, that is, only at distance 0."""
        given = ids if self.relation is hf.Neighbours.REPLACE else None
        data = hf.Dataset(x, y, ids=given)
        (job,) = prepare_jobs(
            [model], data, self.full_recipe(), neighbours=self.relation, max_distance=1
        )
        job = replace(job, distances=())
        *_, state = run(job, job.start())
        ladder = tuple(boxes.bounds for boxes in state.boxes)
        return Certified(
            job.network,
            job.recipe,
            job.neighbours,
            ladder,
            "default",
            data.record_shape,
            (),
            state.run_id,
        )  # fmt: skip


def neighbouring_data_set(
    case: Case, certified: Certified, x: Tensor, y: Tensor, ids: Tensor, moves: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a data set exactly `moves` moves away.

    The records are chosen at random or adversarially, depending on the seed.
    """
    generator = torch.Generator().manual_seed(seed)
    leaving = _leaving(certified, x, y, moves, seed, generator)
    arriving_y = torch.randint(0, case.classes, (moves,), generator=generator)
    arriving_x = _arriving(case, certified, x, y, arriving_y, seed, generator)
    if case.relation is hf.Neighbours.REPLACE:
        x, y = x.clone(), y.clone()
        x[leaving], y[leaving] = arriving_x, arriving_y
        return x, y, ids
    removed = (
        moves
        if case.relation is hf.Neighbours.REMOVE
        else int(torch.randint(0, moves + 1, (1,), generator=generator))
    )
    stay = torch.ones(len(y), dtype=torch.bool)
    stay[leaving[:removed]] = False
    added = moves - removed
    x, y = torch.cat([x[stay], arriving_x[:added]]), torch.cat([y[stay], arriving_y[:added]])
    shuffle = torch.randperm(len(y), generator=generator)
    return x[shuffle], y[shuffle], torch.arange(len(y))


def _leaving(
    certified: Certified, x: Tensor, y: Tensor, moves: int, seed: int, generator: torch.Generator
) -> Tensor:
    """Return the records to remove: random ones, or those with the largest or smallest loss."""
    if seed % 2:
        return torch.randperm(len(y), generator=generator)[:moves]
    with torch.no_grad():
        loss = certified.recipe.loss_function.value(certified.model(x), y)
    return loss.argsort(descending=seed % 4 == 0)[:moves]


def _arriving(
    case: Case,
    certified: Certified,
    x: Tensor,
    y: Tensor,
    labels: Tensor,
    seed: int,
    generator: torch.Generator,
) -> Tensor:
    fresh = case.features(labels, generator)
    kind = seed % 5
    if kind == 1:  # outliers
        return fresh * 40
    if kind == 2:  # flipped labels: features of one class with the label of another
        return case.features((labels + 1) % case.classes, generator)
    if kind == 3:  # saturate the clip in every entry
        return torch.sign(fresh) * 1e4
    if kind == 4:  # copies of one existing record with random labels
        return x[:1].expand(len(labels), *x.shape[1:]).clone()
    return fresh


def _dense(*widths: int, act=nn.ReLU) -> tuple:
    layers = []
    for i in range(len(widths) - 1):
        layers.append(lambda i=i: nn.Linear(widths[i], widths[i + 1]))
        if i < len(widths) - 2:
            layers.append(act)
    return tuple(layers)


_CONV = (
    lambda: nn.Conv2d(1, 3, 3, stride=2, padding=1),
    nn.ReLU,
    lambda: nn.Conv2d(3, 4, 2, dilation=2),
    lambda: nn.BatchNorm2d(4),
    nn.Tanh,
    nn.Flatten,
    lambda: nn.Linear(16, 1),
)
_POOLED = (
    lambda: nn.Conv2d(2, 4, 3, padding="same", groups=2),
    nn.Softplus,
    lambda: nn.AvgPool2d(2),
    nn.Flatten,
    lambda: nn.Linear(16, 3),
)
_IMAGE = {"shape": (1, 7, 7), "records": 40}

_BASES = (
    Case("logistic", _dense(4, 2), recipe={"clip": 0.1, "epochs": 3}),
    Case("relu", _dense(4, 8, 2)),
    Case("relu-minibatch", _dense(4, 8, 2), recipe={"batches": 3}),
    Case(
        "relu-three-classes", _dense(4, 8, 3), classes=3, recipe={"epochs": 1, "learning_rate": 2.0}
    ),
    Case(
        "binary-momentum",
        _dense(4, 8, 1),
        loss="binary_cross_entropy",
        recipe={"momentum": 0.9, "dampening": 0.3, "epochs": 3},
    ),
    Case(
        "binary-nesterov",
        _dense(4, 8, 1),
        loss="binary_cross_entropy",
        recipe={"momentum": 0.8, "nesterov": True, "batches": 2},
    ),
    Case(
        "squared-decay",
        _dense(4, 6, 2),
        loss="squared_error",
        recipe={"weight_decay": 0.05, "learning_rate": 0.2, "decay": 0.5},
    ),
    Case(
        "squared-three-classes",
        _dense(4, 3),
        classes=3,
        loss="squared_error",
        recipe={"momentum": 0.5, "weight_decay": 0.01},
    ),
    Case("saturated", _dense(4, 8, 2), recipe={"clip": 1e-3, "learning_rate": 20.0}),
    Case(
        "deep-leaky",
        _dense(4, 6, 6, 2, act=lambda: nn.LeakyReLU(0.1)),
        recipe={"epochs": 1, "learning_rate": 1.0},
    ),
    Case(
        "sigmoid", _dense(4, 6, 2, act=nn.Sigmoid), recipe={"weight_decay": 0.02, "momentum": 0.5}
    ),
    Case("conv", _CONV, loss="binary_cross_entropy", **_IMAGE, recipe={"clip": 0.02}),
    Case(
        "conv-pooled",
        _POOLED,
        classes=3,
        shape=(2, 4, 4),
        records=40,
        recipe={"batches": 2, "momentum": 0.5, "clip": 0.01},
    ),
)

CASES = tuple(
    replace(base, dtype=dtype, relation=relation)
    for base in _BASES
    for dtype in (torch.float32, torch.float64)
    for relation in hf.Neighbours
    if relation.unit == "record"
)
