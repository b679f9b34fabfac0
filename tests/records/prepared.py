"""Cases of the preparation of records, and what holdfast makes of them, as plain numbers."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor, nn

import holdfast as hf
from holdfast.heads.training import prepare_job
from holdfast.networks.training import prepare_jobs

COLUMNS = ("a", "b", "c")
CLASSES = 3
Where = list[list[list[tuple[int, int, int]]]]
"""By member and batch, in order: the row of each record, its label, and its owner's records."""


@dataclass(frozen=True)
class Case:
    """One way to train."""

    kind: str  # "float32" or "float64" (networks), or the scheme of a head
    keys: str  # "content", "ids" or "persons"
    batches: int
    members: int
    storage: str  # "memory" or "parquet"
    extra: str  # "plain", "rules", "whitening", "front", "offset" or "public"

    @property
    def is_head(self) -> bool:
        return self.kind not in ("float32", "float64")

    @property
    def name(self) -> str:
        split = f"{self.batches}-batches-{self.members}-members"
        return f"{self.kind}-{self.keys}-{split}-{self.storage}-{self.extra}"


def _cases() -> list[Case]:
    cases = []
    product = itertools.product(
        ("float32", "float64", "pairs"), ("content", "ids", "persons"), (1, 3), (1, 3),
        ("memory", "parquet"),
    )  # fmt: skip
    for number, (kind, keys, batches, members, storage) in enumerate(product):
        extras = ["plain", "rules", "front", "offset" if kind == "pairs" else "public"]
        # The bits of whitened rows, and with them content ids, differ between processors.
        extras += ["whitening"] if keys != "content" else []
        cases.append(Case(kind, keys, batches, members, storage, extras[number * 7 % len(extras)]))
    for kind, keys in itertools.product(("one_vs_rest", "softmax"), ("content", "ids", "persons")):
        cases.append(Case(kind, keys, 3, 3, "memory", "plain"))
    return cases


CASES = _cases()


@dataclass(frozen=True)
class Data:
    """Records with everything that may tell whose they are."""

    rows: list[list[float]]
    labels: list[int]
    ids: list[Any]
    persons: list[Any]
    most: int | None = 2

    @property
    def x(self) -> Tensor:
        return torch.tensor(self.rows, dtype=torch.float64)


def example(seed: int = 5, count: int = 90) -> Data:
    """Return records, some of them equal, with values that rounding or signs could change."""
    draws = random.Random(seed)
    special = (-0.0, 1e-13, 0.1, 1 / 3, 2.0**-40, 1.7)
    rows = [
        [draws.choice(special) if draws.random() < 0.3 else draws.randrange(-8, 9) / 4
         for _ in COLUMNS]
        for _ in range(count)
    ]  # fmt: skip
    labels = [draws.randrange(CLASSES) for _ in rows]
    rows[-4:], labels[-4:] = rows[:4], labels[:4]  # equal records
    return Data(
        rows, labels, [f"r{3 * row}" for row in range(count)],
        [draws.randrange(count // 3) ** 2 for _ in rows],
    )  # fmt: skip


def _rules(case: Case, data: Data) -> hf.Preprocessing | None:
    if case.extra == "rules":
        return hf.Preprocessing.ranges(dict.fromkeys(COLUMNS, (-2.0, 3.0)))
    if case.extra == "whitening":
        public = torch.tensor(random.Random(9).choices(range(-9, 9), k=300)).reshape(100, 3) / 3.7
        return hf.Preprocessing.whitening(public.double())
    return None


def _dataset(case: Case, data: Data, folder: Path, **more: Any) -> hf.Dataset:
    most = data.most if case.keys == "persons" else None
    options = {"preprocessing": _rules(case, data), "max_records_per_person": most, **more}
    if case.storage == "memory":
        x: Any = data.x
        if case.extra == "rules":
            x = {name: data.x[:, place].numpy() for place, name in enumerate(COLUMNS)}
        keys = {"content": {}, "ids": {"ids": data.ids}, "persons": {"persons": data.persons}}
        return hf.Dataset(x, torch.tensor(data.labels), **keys[case.keys], **options)
    columns = {name: [row[place] for row in data.rows] for place, name in enumerate(COLUMNS)}
    table = pa.table(columns | {"y": data.labels, "id": data.ids, "owner": data.persons})
    path = folder / "records.parquet"
    parquet.write_table(table, path, row_group_size=17)
    column = {"content": {}, "ids": {"id": "id"}, "persons": {"person": "owner"}}[case.keys]
    return hf.Dataset.parquet(path, label="y", columns=COLUMNS, **column, **options)


def _relation(case: Case) -> str:
    return "replace" if case.keys == "ids" else "add_remove"


def _size(case: Case) -> int | None:
    return None if case.keys == "ids" else 10


def prepared(case: Case, data: Data, folder: Path) -> tuple[int | None, int | None, Where]:
    """Return the normaliser, the number of owners (heads), and where every record went."""
    return _head(case, data, folder) if case.is_head else _networks(case, data, folder)


def _networks(case: Case, data: Data, folder: Path) -> tuple[int | None, int | None, Where]:
    dtype = torch.float32 if case.kind == "float32" else torch.float64
    torch.manual_seed(3)
    frozen = nn.Linear(3, 4).requires_grad_(False) if case.extra == "front" else None

    def make(seed: int) -> nn.Module:
        last = nn.Linear(3 if frozen is None else 4, CLASSES)
        return nn.Sequential(*([] if frozen is None else [frozen, nn.ReLU()]), last).to(dtype)

    rules = _rules(case, data)
    public = (data.x[:7] + 3, torch.tensor(data.labels[:7])) if case.extra == "public" else None
    recipe = hf.Recipe(batches=case.batches, batch_size=_size(case), seed=4)
    jobs = prepare_jobs(
        [make(seed) for seed in range(case.members)],
        _dataset(case, data, folder),
        recipe,
        neighbours=_relation(case),
        max_distance=1,
        public=public,
    )
    where: Where = []
    for job in jobs:
        known = _rows_by_content(job.network.front(_features(data, rules, dtype), None))
        batches = []
        for batch in range(case.batches):
            records = []
            for block in job.private.blocks(batch, 7):
                counts = itertools.repeat(1) if block.counts is None else block.counts.tolist()
                labels = block.labels.tolist()
                for row, label, count in zip(block.features, labels, counts, strict=False):
                    records.append((known[row.numpy().tobytes()], label, count))
            batches.append(records)
        where.append(batches)
        assert (job.public is None) == (public is None)
    return jobs[0].recipe.batch_size, None, where


def _head(case: Case, data: Data, folder: Path) -> tuple[int | None, int | None, Where]:
    torch.manual_seed(3)
    encoder = nn.Linear(3, 4).double() if case.extra == "front" else None
    offset = nn.Linear(3, CLASSES).double() if case.extra == "offset" else None
    rules = _rules(case, data)
    job = prepare_job(
        _dataset(case, data, folder, classes=CLASSES),
        hf.LinearRecipe(batches=case.batches, batch_size=_size(case), travel=5.0, seed=4),
        neighbours=_relation(case),
        members=case.members,
        multiclass=case.kind,
        encoder=encoder,
        offset=offset,
    )
    features, _, _ = job.inputs(_features(data, rules, torch.float64), job.scheme)
    known = _rows_by_content(torch.from_numpy(features))
    where: Where = []
    for source in job.arranged():
        batches: list[list[tuple[int, int, int]]] = []
        for batch in range(case.batches):
            records: list[tuple[int, int, int]] = []
            for number in range(source.starts[batch], source.starts[batch + 1]):
                window = source.window(number, number + 1)
                label, width = int(window.blocks[0, 2]), window.width
                rows = window.columns.reshape(width, -1).T
                for row, share in zip(np.ascontiguousarray(rows), window.shares, strict=True):
                    records.append((known[row.tobytes()], label, round(1 / share)))
            batches.append(records)
        where.append(batches)
    return job.head.recipe.batch_size, job.records.units, where


def _features(data: Data, rules: hf.Preprocessing | None, dtype: torch.dtype) -> Tensor:
    from holdfast.arrays import check_features

    return check_features(data.x if rules is None else rules.apply(data.x), dtype)


def _rows_by_content(features: Tensor) -> dict[bytes, int]:
    """Return the first row with each content."""
    rows = features.numpy()
    return {rows[row].tobytes(): row for row in reversed(range(len(rows)))}


def digest(case: Case, folder: Path) -> str:
    """Return a digest of everything that the preparation decides, the same on all machines."""
    return hashlib.sha256(json.dumps(prepared(case, example(), folder)).encode()).hexdigest()[:16]


DIGESTS = Path(__file__).with_name("prepared.json")

if __name__ == "__main__":  # write the digests anew: only if records are meant to move
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        digests = {case.name: digest(case, Path(name)) for case in CASES}
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
