"""HashKFold: folds for cross-validation that no other record can change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..arrays import as_features
from ..checks import check_integer
from .ids import assign_parts, content_ids, id_codes


class HashKFold:
    """Split records into folds by a keyed hash of their ids, for scikit-learn's `cv=`.

    If folds are cut by row number, all of them change when one record leaves: the models of
    neighbouring data sets then differ in many records, and their answers can reveal more than is
    charged. Here, a record or a person enters or leaves one fold and moves no other.

    Scores are not private, whatever the folds are: they are computed from private labels. Use them
    to compare settings without publishing them; whatever is published must be charged to a budget.

    Args:
        n_splits: The number of folds.
        seed: The key of the hash; another seed gives other folds.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> folds = hf.records.HashKFold(3)
        >>> sizes = [len(test) for _, test in folds.split(np.zeros((9, 1)), groups=range(9))]
        >>> sum(sizes)
        9
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits, self.seed = (
            check_integer("n_splits", n_splits, 2),
            check_integer("seed", seed, 0),
        )

    def __repr__(self) -> str:
        return f"HashKFold({self.n_splits}, seed={self.seed})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and the rows to test on, fold by fold.

        Args:
            X: The records.
            y: Not used.
            groups: One id per record, a whole number or a string; records with the same id, such as
                those of one person, share a fold. Without it, a record's id is a hash of its
                features, so that equal records share a fold.

        Raises:
            InvalidInput: If there is not one id per record.
        """
        if groups is None:
            features = as_features(X)
            codes = content_ids(features, torch.zeros(len(features), dtype=torch.int64))
        else:
            codes = id_codes("groups", groups, len(X))
        fold = assign_parts(codes, self.n_splits, self.seed, b"fold").numpy()
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
