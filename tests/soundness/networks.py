"""Random networks with every layer, activation, loss and kind of front, and odd sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.layers.losses import LOSSES

DTYPES = [torch.float32, torch.float64]
ACTIVATIONS = [
    nn.ReLU,
    lambda: nn.LeakyReLU(0.3),
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
    None,
]
FRONTS = ["none", "known", "foreign", "mixed"]


class Encoder(nn.Module):
    """A frozen layer unknown to holdfast: user code that calls a library's products."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(nn.functional.gelu(self.inner(x)))


@dataclass(frozen=True)
class RandomNetwork:
    """A network, the shape of its records, and its loss."""

    model: nn.Sequential
    shape: tuple[int, ...]
    loss: str
    classes: int
    dtype: torch.dtype

    def records(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *self.shape, generator=generator).to(self.dtype)
        return x, torch.randint(0, self.classes, (count,), generator=generator)


def draw(seed: int) -> RandomNetwork:
    """Return a random network that is determined by the seed."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    dtype, loss = pick.choice(DTYPES), pick.choice(list(LOSSES))
    outputs = 1 if loss == "binary_cross_entropy" else pick.randint(2, 4)
    layers, shape = _image(pick) if pick.random() < 0.6 else _flat(pick)
    width = nn.Sequential(*layers).to(torch.float32).eval()(torch.zeros(2, *shape)).shape[1]
    layers.append(nn.Linear(width, outputs, bias=pick.random() < 0.8))
    model = nn.Sequential(*layers).to(dtype).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return RandomNetwork(model, shape, loss, max(2, outputs), dtype)


def _activation(pick: random.Random) -> list[nn.Module]:
    make = pick.choice(ACTIVATIONS)
    return [] if make is None else [make()]


def _flat(pick: random.Random) -> tuple[list[nn.Module], tuple[int, ...]]:
    width = inputs = pick.choice([1, 2, 3, 5, 7, 9, 16, 17, 33])
    layers: list[nn.Module] = []
    front = pick.choice(FRONTS)
    if front in ("known", "mixed"):
        inner = pick.choice([1, 3, 8, 9])
        frozen = nn.Linear(width, inner).requires_grad_(False)
        frozen.bias.mul_(pick.choice([1.0, 3e4]))  # a large bias hides the last bits of the product
        layers += [frozen, nn.ReLU()]
        width = inner
    if front in ("foreign", "mixed"):
        inner = pick.choice([2, 5, 9])
        layers.append(Encoder(width, inner).requires_grad_(False))
        width = inner
    for _ in range(pick.randint(1, 2)):
        inner = pick.choice([1, 2, 3, 7, 8, 9, 13, 16, 17])
        layers += [nn.Linear(width, inner, bias=pick.random() < 0.8), *_activation(pick)]
        width = inner
        if pick.random() < 0.2:
            layers.append(nn.BatchNorm1d(width, affine=pick.random() < 0.7))
    return layers, (inputs,)


def _image(pick: random.Random) -> tuple[list[nn.Module], tuple[int, ...]]:
    channels = pick.choice([1, 2, 3])
    shape = (channels, pick.randint(6, 12), pick.randint(6, 12))
    layers: list[nn.Module] = []
    if pick.random() < 0.3:
        layers += [nn.Conv2d(channels, 2, 1).requires_grad_(False), nn.ReLU()]
        channels = 2
    for _ in range(pick.choice([1, 1, 2])):
        groups = channels if pick.random() < 0.2 else 1
        outputs = groups * pick.choice([1, 1, 1, 2, 3])
        height, width = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[2:]
        kernel = (min(height, pick.choice([1, 2, 3, 3])), min(width, pick.choice([1, 2, 3, 3])))
        stride, padding = (
            (pick.choice([1, 1, 2]), pick.choice([1, 1, 2])),
            (pick.randint(0, 1), pick.randint(0, 1)),
        )
        dilation = pick.choice([1, 1, 2]) if max(kernel) <= 2 and min(height, width) > 2 else 1
        bias = pick.random() < 0.7
        layers += [
            nn.Conv2d(channels, outputs, kernel, stride, padding, dilation, groups, bias),
            *_activation(pick),
        ]
        channels = outputs
    if pick.random() < 0.2:
        layers.append(nn.BatchNorm2d(channels, affine=pick.random() < 0.7))
    pool = pick.choice(
        [
            None,
            nn.AvgPool2d(2, ceil_mode=True),
            nn.AdaptiveAvgPool2d((2, 1)),
            nn.AvgPool2d((1, 2), 1, count_include_pad=False),
        ]
    )
    layers += [] if pool is None else [nn.AdaptiveAvgPool2d(3), pool]
    return [*layers, nn.Flatten(), *([nn.Dropout(0.0)] if pick.random() < 0.1 else [])], shape
