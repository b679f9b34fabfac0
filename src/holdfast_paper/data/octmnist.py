"""OctMNIST: retinal scans of 28x28 pixels, normal or not.

Of the training images, only the private ones show Drusen, one of the diseases.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.errors import DamagedFile
from holdfast.examples.blobs import Task, floats, labels
from holdfast.records.tables import download, find_file, read_archive

DRUSEN, NORMAL = 2, 3
URL = "https://zenodo.org/records/10519652/files/octmnist.npz?download=1"
MD5 = "c68d92d5b585d8d81f7112f81e2d0842"
_NAMES = ("octmnist/octmnist.npz", "octmnist.npz")
_PARTS = ("train", "val", "test")


def octmnist(folder: Path | None, fetch: bool = False) -> Task:
    """Return the OctMNIST task.

    The private records are the training images with Drusen and as many normal ones; the other
    training images are public. Settings are chosen on the validation images. All test images are
    queries, grouped by their original class. `fetch` downloads MedMNIST's file if it is missing.
    """
    if fetch and folder is not None and not any((folder / name).is_file() for name in _NAMES):
        download(URL, folder / _NAMES[0], MD5)
    how = f"Get it with --download, or download {URL} (MD5 {MD5}) and put it there."
    path = find_file(folder, _NAMES, how)
    arrays = read_archive(
        path, [f"{part}_{kind}" for part in _PARTS for kind in ("images", "labels")]
    )
    for part in _PARTS:
        if arrays[f"{part}_images"].shape != (arrays[f"{part}_labels"].size, 28, 28):
            raise DamagedFile(
                f"{path}: {part}_images has shape {arrays[f'{part}_images'].shape}; "
                "expected one scan of 28x28 per label"
            )
    images = {part: floats(arrays[f"{part}_images"])[:, None] / 255.0 for part in _PARTS}
    kinds = {part: labels(arrays[f"{part}_labels"]) for part in _PARTS}
    order = np.random.default_rng(0).permutation(len(kinds["train"]))
    shuffled = kinds["train"].numpy()[order]
    drusen, normal = order[shuffled == DRUSEN], order[shuffled == NORMAL]
    if not 0 < len(drusen) < len(normal):
        raise DamagedFile(
            f"{path}: {len(drusen)} scans with Drusen and {len(normal)} normal ones to train on; "
            "expected some with Drusen, and more normal ones"
        )
    private = np.sort(np.concatenate([drusen, normal[: len(drusen)]]))
    public = np.setdiff1d(order, private)
    abnormal = {part: (kind != NORMAL).long() for part, kind in kinds.items()}
    return Task(
        name="octmnist",
        source=(
            f"{path.name}: {len(private):,} private images "
            f"({len(drusen):,} with Drusen), {len(public):,} public"
        ),
        x=images["train"][private],
        y=abnormal["train"][private],
        query_x=images["test"],
        query_y=abnormal["test"],
        query_groups=kinds["test"],
        public_x=images["train"][public],
        public_y=abnormal["train"][public],
        tune_x=images["val"],
        tune_y=abnormal["val"],
    )
