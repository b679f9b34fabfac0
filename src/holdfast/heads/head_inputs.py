"""What a head sees of a record: scaled features, clipped to a public norm, and public offsets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import Floats
from ..errors import InvalidInput
from ..kernels.heads import scaled_rows
from ..layers import Front
from ..workers import ProgressCallback
from .multiclass import Scheme

BIAS = 0.1
"""The constant feature that stands for the bias, beside features with a norm of about 1."""


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """The public functions of a record that a head is trained on.

    Guarantees:
        Features, norm and offsets of a record depend only on that record and on public numbers:
        `Front` and the loops compute each record by itself.
    """

    record_shape: tuple[int, ...]
    encoder: Front | None
    offset: Front | None
    scale: float
    radius: float

    @classmethod
    def of(
        cls,
        record_shape: tuple[int, ...],
        encoder: Any,
        offset: Any,
        classes: int,
        scale: float | None,
        radius: float,
    ) -> HeadInputs:
        """Check the public modules, or None; `scale` None is 1 / sqrt(number of features)."""
        front = None if encoder is None else Front.of_module("encoder", encoder, record_shape)
        base = None if offset is None else Front.of_module("offset", offset, record_shape)
        wanted = {(classes,), (1,)} if classes == 2 else {(classes,)}
        if base is not None and base.shapes[-1] not in wanted:
            raise InvalidInput(
                f"offset gives {base.shapes[-1]} numbers per record: expected {classes} logits"
                + (", or one" if classes == 2 else "")
            )
        width = math.prod(record_shape if front is None else front.shapes[-1])
        return cls(
            record_shape, front, base, 1.0 / math.sqrt(width) if scale is None else scale, radius
        )

    def without_history(self) -> HeadInputs:
        """Return the same functions, with modules that no record has passed."""
        encoder, offset = (
            None if front is None else front.without_history()
            for front in (self.encoder, self.offset)
        )
        return replace(self, encoder=encoder, offset=offset)

    @property
    def width(self) -> int:
        """The number of weights per head: features and bias."""
        shape = self.record_shape if self.encoder is None else self.encoder.shapes[-1]
        return math.prod(shape) + 1

    def __call__(
        self, records: Tensor, scheme: Scheme, watch: ProgressCallback | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Return the features, their norms, and the offset of every head."""
        encoded = records if self.encoder is None else self.encoder(records, watch)
        rows = encoded.reshape(len(records), self.width - 1).double().contiguous().numpy()
        features, norms = scaled_rows(rows, self.scale, BIAS, self.radius)
        if self.offset is None:
            return features, norms, np.zeros((len(records), scheme.heads))
        logits = torch.nan_to_num(self.offset(records).double(), nan=0.0).numpy()
        offsets = scheme.offsets(logits)
        assert offsets.shape == (len(records), scheme.heads)
        return features, norms, offsets
