"""Training gives the same bits on every machine: digests of small runs are stored here.

They follow from the arithmetic alone: additions, products and quotients are rounded as IEEE 754
requires, in a fixed order, and the tables use only these operations. If a digest changes, every
model trained before would give other certificates: that is a change of the file format, and it
affects the security of what was released.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf

DIGESTS = {
    "dense-float32": "2cde6a7a40f8363452c0abd2454e225cb59c342793f0ce42e2ac83cf8117195f",
    "dense-float64": "c7a532e1767e897b5ae0eaba3ff7ecb72ba2bd0845753e556107547124b275d1",
    "convolution-float32": "970f84039dce452f341e303f0eedf2e15e0491fa2a6798aa8233ece6b04ee540",
    "convolution-float64": "d401968f8a385303a08724eb34bd51f20fce4f80d66a474e65b10a6da302b782",
    "activations-float32": "1479a54b7a0499211a88a96413d068f3a748a7ad944fc911de90051903254c44",
    "activations-float64": "863d0b60fa7858e26598a22b51f73a19a7a0f76bae2e1bbc220287ff5ec384bb",
}


def numbers(count: int, start: int, scale: float = 1.0) -> Tensor:
    """Return numbers in -scale..scale by integer arithmetic, without a random generator."""
    values = [((start + i) * 2654435761 % 2**32) / 2**31 - 1.0 for i in range(1, count + 1)]
    return scale * torch.tensor(values, dtype=torch.float64)


def _filled(model: nn.Module) -> nn.Module:
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbers(parameter.numel(), start, 0.5).view(parameter.shape))
            start += parameter.numel()
    return model


MODELS = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(5, 17), nn.ReLU(), nn.Linear(17, 3)),
        (5,),
        3,
        {"momentum": 0.9, "nesterov": True},
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 1, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(9, 1),
        ),
        (1, 6, 6),
        2,
        {"loss": "binary_cross_entropy", "weight_decay": 0.01},
    ),
    "activations": (
        lambda: nn.Sequential(
            nn.Linear(4, 6),
            nn.Tanh(),
            nn.Linear(6, 5),
            nn.Sigmoid(),
            nn.Linear(5, 4),
            nn.Softplus(),
            nn.Linear(4, 2),
        ),
        (4,),
        2,
        {"loss": "squared_error", "batches": 2},
    ),
}


def digest(name: str, dtype: torch.dtype) -> str:
    make, shape, classes, settings = MODELS[name]
    model = _filled(make().to(dtype))
    count = 40
    x = numbers(count * torch.Size(shape).numel(), 10**6, 2.0).view(count, *shape).to(dtype)
    y = torch.arange(count) * 7 % 11 % classes
    recipe = hf.Recipe(
        epochs=3, learning_rate=0.4, decay=0.3, clip=0.07, batch_size=count, **settings
    )
    certified = hf.train(
        model, x, y, recipe, neighbours="replace", max_distance=2, ids=range(count), progress=False
    )
    found = hashlib.sha256()
    for bounds in certified.ladder:
        for key in sorted(bounds.box):
            for end in (bounds.lower[key], bounds.upper[key]):
                found.update(
                    (end + 0.0).numpy().astype(end.numpy().dtype.newbyteorder("<")).tobytes()
                )
    return found.hexdigest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_bits_that_are_stored(name: str, dtype: torch.dtype) -> None:
    assert digest(name, dtype) == DIGESTS[f"{name}-{str(dtype)[6:]}"]


@pytest.mark.slow
def test_a_plain_processor_gives_the_same_bits(tmp_path: Path) -> None:
    """The bits are the same if numba and torch use no vector extensions, as on another machine."""
    plain = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "ATEN_CPU_CAPABILITY": "default",
    }
    code = "import torch; from tests.soundness.test_bits import MODELS, digest\n"
    code += (
        "for name in MODELS:\n    for kind in (torch.float32, torch.float64): "
        "print(f'{name}-{str(kind)[6:]}', digest(name, kind))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(line.split() for line in done.stdout.splitlines()) == DIGESTS
