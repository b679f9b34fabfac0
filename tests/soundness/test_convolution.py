"""The paper's small convolutional network on 28x28 images, with all layers trainable.

The bounds are sound and the memory is bounded.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import holdfast as hf
from holdfast.networks.loop import run
from holdfast.networks.training import prepare_jobs

RECORDS, REACH = 512, 5


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3200, 100),
        nn.ReLU(),
        nn.Linear(100, 1),
    )


def _images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of bright or dark discs on noise, and their labels."""
    y = torch.arange(n) % 2
    across = torch.linspace(-1, 1, 28)
    disc = ((across[:, None] ** 2 + across[None, :] ** 2) < 0.4).float()
    return (torch.rand(n, 1, 28, 28) * 0.3 + disc * (0.2 + 0.5 * y.view(-1, 1, 1, 1))), y


def test_all_layers_trainable(figures) -> None:
    x, y = _images(RECORDS)
    recipe = hf.Recipe(
        learning_rate=0.5, clip=1e-3, batch_size=RECORDS, loss="binary_cross_entropy"
    )
    certified = hf.train(_model(), x, y, recipe, max_distance=REACH, progress=False)
    certificate = certified.certify(_images(64)[0])
    figures["28x28 convolution, 512 records, K = 5"] = (
        f"certified at k = 5: {certificate.share(5):.3f}"
    )
    for moves in range(1, REACH + 1):
        new = torch.cat([x[moves:], _images(moves)[0] * 30])
        labels = torch.cat([y[moves:], 1 - y[:moves]])
        more = hf.Dataset(torch.cat([x, _images(moves)[0] * 30]), torch.cat([y, 1 - y[:moves]]))
        (job,) = prepare_jobs([_model()], more, recipe, max_distance=1)
        *_, state = run(replace(job, distances=()), replace(job, distances=()).start())
        assert certified.bounds(moves).encloses(state.boxes[0].bounds)
        if 2 * moves <= REACH:  # `moves` records removed and as many added
            (job,) = prepare_jobs([_model()], hf.Dataset(new, labels), recipe, max_distance=1)
            *_, state = run(replace(job, distances=()), replace(job, distances=()).start())
            assert certified.bounds(2 * moves).encloses(state.boxes[0].bounds)


_SCRIPT = """
import sys
from benchmarks.training import peak_memory_during
from tests.soundness.test_convolution import _images, _model, hf
def work(rows):
    x, y = _images(rows)
    recipe = hf.Recipe(learning_rate=0.5, clip=1e-3, batch_size=512, loss="binary_cross_entropy")
    hf.train(_model(), x, y, recipe, max_distance=2, progress=False)
work(16)
print(peak_memory_during(lambda: work(int(sys.argv[1]))))
"""


def _peak(rows: int) -> float:
    """Return the peak memory of training in MiB, measured in a separate process."""
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(rows)],
        check=True,
        capture_output=True,
        text=True,
        cwd=root,
    )
    return float(run.stdout)


def test_memory_does_not_grow_with_records_times_parameters(figures) -> None:
    few, many = _peak(128), _peak(512)
    gradients = 512 * sum(p.numel() for p in _model().parameters()) * 4 / 2**20
    figures["28x28 convolution, peak memory"] = (
        f"+{few:.0f} MiB for 128 records, +{many:.0f} MiB for 512 (their gradients, both ends, "
        f"would be {2 * gradients:.0f} MiB)"
    )
    assert many < gradients
    # The gradients of 384 more records would add 3/4 of `gradients`; allow a quarter of that.
    assert many - few < 3 * gradients / 4 / 4
