"""Exports of a released head: a torch module and a scikit-learn pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from ..layers import Front
from .ball import OFFSET_LIMIT
from .schemes import BIAS

if TYPE_CHECKING:
    from .released import ReleasedHead


class HeadModule(nn.Module):
    """A released head as a torch module, from records to logits, in float64."""

    def __init__(self, released: ReleasedHead) -> None:
        super().__init__()
        inputs = released.inputs
        self.encoder, self.encoder_dtype = _module(inputs.encoder)
        self.offset, self.offset_dtype = _module(inputs.offset)
        self.scale, self.radius, self.pair = inputs.scale, inputs.radius, released.classes == 2
        self.linear = nn.Linear(inputs.width, released.scheme.heads, bias=False).double()
        self.linear.weight = nn.Parameter(released.weights.clone(), requires_grad=False)
        self.eval()

    def forward(self, records: Tensor) -> Tensor:
        encoded = records if self.encoder is None else self.encoder(records.to(self.encoder_dtype))
        rows = encoded.flatten(1).double() * self.scale
        rows = torch.cat([rows, torch.full_like(rows[:, :1], BIAS)], 1)
        norms = rows.norm(dim=1, keepdim=True)
        rows = torch.where(norms > self.radius, rows * (self.radius / norms), rows)
        logits: Tensor = self.linear(torch.where(norms < torch.inf, rows, 0.0))
        if self.offset is None:
            return logits
        public = torch.nan_to_num(self.offset(records.to(self.offset_dtype)).double(), nan=0.0)
        if self.pair and public.shape[1] == 2:
            public = public[:, 1:] - public[:, :1]
        return logits + public.clamp(-OFFSET_LIMIT, OFFSET_LIMIT)


def _module(front: Front | None) -> tuple[nn.Sequential | None, torch.dtype]:
    if front is None:
        return None, torch.float64
    return nn.Sequential(*(module for _, module in front.without_history().layers)), front.dtype


class HeadFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The public functions of a record that a released head sees, as a scikit-learn transformer.

    The columns are the features, clipped, and the public offset of every score.
    """

    def __init__(self, released: ReleasedHead) -> None:
        self.released = released

    def fit(self, x: Any, y: Any = None) -> HeadFeatures:
        """Do nothing: all of it is public and fixed."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, x: Any) -> np.ndarray[Any, Any]:
        """Return features and offsets, one row per query."""
        head = self.released
        features, _, offsets = head.inputs(head.features(x), head.scheme)
        return np.hstack([features, offsets])


def sklearn_pipeline(released: ReleasedHead) -> Pipeline:
    """Return a fitted pipeline of `HeadFeatures` and a `LogisticRegression`."""
    heads = released.scheme.heads
    model = LogisticRegression()
    # The offsets are columns of their own, each with weight 1 in its score.
    model.coef_ = np.hstack([released.weights.numpy(), np.eye(heads)])
    model.intercept_ = np.zeros(heads)
    names = released.class_names(range(released.classes))
    named = released.names or (released.preprocessing and released.preprocessing.classes)
    model.classes_ = np.array(names) if named else np.arange(released.classes)
    model.n_features_in_ = model.coef_.shape[1]
    model.n_iter_ = np.zeros(1, dtype=np.int32)
    return Pipeline([("features", HeadFeatures(released)), ("head", model)])
