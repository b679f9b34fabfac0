"""The public front of a model: frozen layers of any kind, run as plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

_CHUNK = 64


@dataclass(frozen=True, eq=False)
class Prefix:
    """Frozen leading layers. Their output for a record is that record's features, and depends on nothing else.

    Guarantees
    ----------
    Records go through in chunks of one fixed shape; where a probe on random numbers finds that a record's place in
    the chunk changes its features by a single bit, they go through one by one.
    """

    layers: tuple[tuple[str, nn.Module], ...]
    dtype: torch.dtype

    @cached_property
    def module(self) -> nn.Sequential:
        return nn.Sequential(*(module for _, module in self.layers)).eval()

    def __call__(self, x: Tensor) -> Tensor:
        """Features of the records `x`."""
        if not self.layers or not len(x):
            return x
        with torch.no_grad():
            rows = self._rows(x.shape[1:])
            return torch.cat([self._chunk(x[first : first + rows], rows) for first in range(0, len(x), rows)])

    def _chunk(self, part: Tensor, rows: int) -> Tensor:
        padded = part.new_zeros(rows, *part.shape[1:])
        padded[: len(part)] = part
        features: Tensor = self.module(padded)
        return features[: len(part)].to(self.dtype)

    def _rows(self, record_shape: torch.Size) -> int:
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(_CHUNK, *record_shape, generator=generator, dtype=self.dtype)
        probe = probe.to(next(self.module.parameters(), probe).device)
        alone = torch.zeros_like(probe)
        alone[-1] = probe[-1]
        result = self.module(probe)
        same = torch.equal(self.module(probe.flip(0)).flip(0), result) and torch.equal(self.module(alone)[-1], result[-1])
        return _CHUNK if same else 1
