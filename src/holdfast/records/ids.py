"""Ids and owners as bytes, and keyed hashes that assign records to batches, members and folds.

Nothing here looks at a record's row number: deleting record 0 must not move any other record to
another batch.

A person has one batch, one member and one share of every step, whatever the other persons do; all
of it depends on the person's own records and on public numbers (docs/theory/persons.md).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import as_features
from ..checks import check_integer
from ..errors import InvalidInput
from ..preprocessing.columns import MISSING_WORDS


def encode_ids(what: str, ids: Any, rows: int) -> list[bytes]:
    """Return one id per record as bytes; `what` names the argument in error messages.

    Raises InvalidInput on a wrong length, and on ids other than whole numbers and strings.
    """
    one_each = getattr(ids, "ndim", 1) == 1 and not isinstance(ids, Set | Mapping | str | bytes)
    if not one_each or not isinstance(ids, Iterable):
        raise InvalidInput(
            f"{what} is a {type(ids).__name__}: expected one whole number or string per record"
        )
    values = [value.item() if isinstance(value, np.generic | Tensor) else value for value in ids]
    if len(values) != rows:
        raise InvalidInput(f"{len(values)} {what} for {rows} records: expected one per record")
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(f"{what}[{row}] = {value!r}: expected a whole number or a string")
    return [
        f"{'text' if isinstance(value, str) else 'number'}:{value}".encode("utf-8", "surrogatepass")
        for value in values
    ]


def given_ids(ids: Any, rows: int) -> list[bytes]:
    """Return ids as bytes, as `encode_ids` does; raise InvalidInput if one occurs twice."""
    codes = encode_ids("ids", ids, rows)
    refuse_equal_ids(codes, range(rows))
    return codes


def refuse_equal_ids(codes: list[bytes], rows: Iterable[int]) -> None:
    """Raise InvalidInput if an id occurs twice; `rows` are the numbers of their rows, from 0."""
    seen: dict[bytes, int] = {}
    for code, row in zip(codes, rows, strict=True):
        if code in seen:
            kind, _, name = code.decode("utf-8", "surrogatepass").partition(":")
            raise InvalidInput(
                f"ids, row {row + 1}: {name if kind == 'number' else repr(name)} "
                f"is also the id of row {seen[code] + 1}: "
                "ids must be unique, one per record"
            )
        seen[code] = row


def content_ids(
    features: Float[Tensor, "records ..."], labels: Int64[Tensor, " records"]
) -> list[bytes]:
    """Return the default ids: a hash of each record's content.

    Equal records share an id, and therefore a batch.
    """
    rows = (features.flatten(1) + 0.0).numpy()  # + 0.0 turns negative zeros into zeros
    return [
        hashlib.blake2b(row.tobytes() + int(label).to_bytes(8, "little")).digest()
        for row, label in zip(rows, labels, strict=True)
    ]


def assign_parts(
    ids: list[bytes], parts: int, seed: int, purpose: bytes
) -> Int64[Tensor, " records"]:
    """Return a part 0..parts-1 for each id, by a hash keyed with the seed and the purpose.

    Guarantees:
        A record's part depends only on its own id and on public numbers. Different purposes give
        independent parts.
    """
    key = seed.to_bytes(16, "little")
    digests = (
        hashlib.blake2b(code, digest_size=8, key=key, person=purpose).digest() for code in ids
    )
    return torch.tensor(
        [int.from_bytes(digest, "little") % parts for digest in digests], dtype=torch.int64
    )


def sort_keys(ids: list[bytes], seed: int) -> NDArray[np.int64]:
    """Return a keyed 64-bit hash per id; records are sorted by it."""
    key = seed.to_bytes(16, "little")
    digests = (
        hashlib.blake2b(code, digest_size=8, key=key, person=b"order").digest() for code in ids
    )
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


NO_OWNER = (*MISSING_WORDS, "None", "none", "<NA>")
"""Texts that do not name an owner: what spreadsheets and data frames write for nothing."""


def encode_owners(persons: Any, rows: int, what: str = "persons") -> list[bytes]:
    """Return the owner of each record as bytes; raise InvalidInput if one is missing."""
    codes = encode_ids(what, persons, rows)
    for row, code in enumerate(codes):
        name = code.decode("utf-8", "surrogatepass").partition(":")[2]
        if name.strip() in NO_OWNER:
            raise InvalidInput(f"{what}[{row}] = {name!r}: expected the owner of every record")
        if name != name.strip():
            raise InvalidInput(
                f"{what}[{row}] = {name!r} begins or ends with a space, so that it would be "
                f"another person than {name.strip()!r}; remove the spaces"
            )
    if len({code[:4] for code in codes}) > 1:
        raise InvalidInput(
            f"{what} holds both numbers and strings, so that 7 and '7' would be two persons; "
            "convert all of them to strings"
        )
    return codes


def used_records(owners: list[bytes], most: int, contents: list[bytes], seed: int) -> list[int]:
    """Return the rows of at most `most` records per owner, in order.

    Args:
        owners: The owner of each record.
        most: The largest number of records of one owner that are used.
        contents: The content of each record, as `content_ids` returns it.
        seed: The key of the hash.

    Guarantees:
        Which records of an owner are used depends on the records of that owner alone, and not on
        their order: those with the smallest keyed hashes of their content.
    """
    hashes = sort_keys(contents, seed).tolist()
    by_owner: dict[bytes, list[int]] = defaultdict(list)
    for row, owner in enumerate(owners):
        by_owner[owner].append(row)
    return sorted(
        row
        for own in by_owner.values()
        for row in sorted(own, key=lambda row: (hashes[row], contents[row]))[:most]
    )


def records_per_owner(owners: list[bytes]) -> NDArray[np.int32]:
    """Return for each record how many records its owner has."""
    sizes = Counter(owners)
    return np.array([sizes[owner] for owner in owners], np.int32)


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
            codes = encode_ids("groups", groups, len(X))
        fold = assign_parts(codes, self.n_splits, self.seed, b"fold").numpy()
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
