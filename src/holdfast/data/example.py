"""Examples as files: the paper's blobs as two tables and a schema, to try every command on."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidInput
from .blobs import blobs

NAMES = ("blobs-far", "blobs-close")
_COLUMNS = ("x1", "x2", "x1_squared", "x2_squared", "x1_cubed", "x2_cubed")
_CLASSES = ("upper", "lower")


def write_example(name: str, folder: Path, records: int = 5000) -> dict[str, Path]:
    """Write train.csv, queries.csv and schema.toml; four records in five are for training."""
    import pyarrow as pa
    from pyarrow import csv

    if name not in NAMES:
        raise InvalidInput(f"{name!r}: expected one of {', '.join(map(repr, NAMES))}")
    folder.mkdir(parents=True, exist_ok=True)
    data = blobs(name.removeprefix("blobs-"), -(-records * 5 // 4))
    paths = {part: folder / file for part, file in {"train": "train.csv", "queries": "queries.csv", "schema": "schema.toml"}.items()}
    for part, x, y in (("train", data.x, data.y), ("queries", data.test_x, data.test_y)):
        columns = {"id": range(len(y)), **{column: x[:, i].numpy() for i, column in enumerate(_COLUMNS)}}
        csv.write_csv(pa.table({**columns, "cloud": [_CLASSES[label] for label in y.tolist()]}), paths[part])
    entries = "".join(f"\n[columns.{column}]\n" for column in _COLUMNS)
    paths["schema"].write_text(f"# Numbers without a range are taken as they are.\nclasses = {list(_CLASSES)}\n{entries}")
    return paths
