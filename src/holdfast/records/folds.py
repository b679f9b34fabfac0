"""Folds for cross-validation that one record does not shift: each record's fold is a keyed hash of its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import whole
from . import as_features, assign, content_ids, given_ids


class HashKFold:
    """Split records into folds by a keyed hash of their ids, for scikit-learn's `cv=`.

    Folds that are cut by row number all change when one record leaves: the models of neighbouring data
    sets then differ in many records, and what their answers reveal is not what is charged. Here a record
    enters or leaves one fold and moves no other.

    Scores are not private, whatever the folds: they are computed from private labels. Use this to compare
    settings in private, and pay for what you publish.

    Args:
        n_splits: The number of folds.
        seed: The key of the hash; another seed gives other folds.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> folds = hf.HashKFold(3)
        >>> sizes = [len(test) for _, test in folds.split(np.zeros((9, 1)), groups=range(9))]
        >>> sum(sizes)
        9
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits, self.seed = whole("n_splits", n_splits, 2), whole("seed", seed, 0)

    def __repr__(self) -> str:
        return f"HashKFold({self.n_splits}, seed={self.seed})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: N803 (scikit-learn's name)
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:  # noqa: N803
        """Yield the rows to train on and the rows to test on, fold by fold.

        Args:
            X: The records.
            y: Not used.
            groups: One unique id per record, a whole number or a string. Without, a record's id is a
                hash of its features, so that equal records share a fold.

        Raises:
            InvalidInput: If ids are given twice, or not one per record.
        """
        if groups is None:
            features = as_features(X)
            codes = content_ids(features, torch.zeros(len(features), dtype=torch.int64))
        else:
            codes = given_ids(groups, len(X))
        fold = assign(codes, self.n_splits, self.seed, b"fold").numpy()
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
