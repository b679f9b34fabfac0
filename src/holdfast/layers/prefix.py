"""The public front of a model: frozen layers of any kind, run as plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel

_CHUNK = 64


@contextmanager
def plainly() -> Iterator[None]:
    """Without gradients, and without the caller's autocast, which would change what is computed."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@dataclass(frozen=True, eq=False)
class Prefix:
    """Frozen leading layers. Their output for a record is that record's features, and depends on nothing else.

    Guarantees
    ----------
    Records go through in chunks of one fixed shape; where a probe on random numbers finds that a record's place in
    the chunk changes its features by a single bit, they go through one by one. Layers that give the same record
    different features the second time are refused.
    """

    layers: tuple[tuple[str, nn.Module], ...]
    dtype: torch.dtype
    record_shape: tuple[int, ...]

    @cached_property
    def module(self) -> nn.Sequential:
        return nn.Sequential(*(module for _, module in self.layers)).eval()

    def zeros(self, rows: int) -> Tensor:
        """Records of zeros, where the layers are."""
        device = next((value.device for value in self.module.state_dict().values()), None)
        return torch.zeros(rows, *self.record_shape, dtype=self.dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """Features of the records `x`."""
        if not self.layers or not len(x):
            return x
        with plainly():
            return torch.cat([self._chunk(x[first : first + self._rows], self._rows) for first in range(0, len(x), self._rows)])

    def probe(self) -> Tensor:
        """The features of a few public random records: what two prefixes are compared by."""
        records = torch.randn(4, *self.record_shape, generator=torch.Generator().manual_seed(0), dtype=self.dtype)
        return self(records)

    def _chunk(self, part: Tensor, rows: int) -> Tensor:
        padded = self.zeros(rows)
        padded[: len(part)] = part
        features: Tensor = self.module(padded)
        return features[: len(part)].to(part.device, self.dtype)

    @cached_property
    def _rows(self) -> int:
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(_CHUNK, *self.record_shape, generator=generator, dtype=self.dtype)
        result = self._chunk(random, _CHUNK)
        if not torch.equal(self._chunk(random, _CHUNK), result):
            raise UnsupportedModel("the frozen layers give the same records different features the second time: remove what is random")
        turned = self._chunk(random.flip(0), _CHUNK).flip(0)
        alone = self._chunk(random[:1], _CHUNK)
        return _CHUNK if torch.equal(turned, result) and torch.equal(alone[0], result[0]) else 1
