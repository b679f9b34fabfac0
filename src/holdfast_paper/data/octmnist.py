"""OctMNIST: retinal scans of 28x28 pixels, normal or not.

Of the training images, only the private ones show Drusen, one of the diseases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import DamagedFile
from holdfast.examples.demo import Task, floats, labels
from holdfast.examples.tables import MissingData, download, find_file, read_archive

DRUSEN, NORMAL = 2, 3
URL = "https://zenodo.org/records/10519652/files/octmnist.npz?download=1"
MD5 = "c68d92d5b585d8d81f7112f81e2d0842"
_NAMES = ("octmnist/octmnist.npz", "octmnist.npz")
_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class _Scans:
    """All scans of the file, by part."""

    path: Path
    images: dict[str, Tensor]
    kinds: dict[str, Tensor]
    patients: NDArray[np.int64] | None  # of the training scans, if the file has them

    def task(self, name: str, private: NDArray[np.int64], public: NDArray[np.int64]) -> Task:
        """Return the task whose private and public records are these training scans."""
        abnormal = {part: (kind != NORMAL).long() for part, kind in self.kinds.items()}
        drusen = int((self.kinds["train"][private] == DRUSEN).sum())
        return Task(
            name=name,
            source=(
                f"{self.path.name}: {len(private):,} private images "
                f"({drusen:,} with Drusen), {len(public):,} public"
            ),
            x=self.images["train"][private],
            y=abnormal["train"][private],
            query_x=self.images["test"],
            query_y=abnormal["test"],
            query_groups=self.kinds["test"],
            public_x=self.images["train"][public],
            public_y=abnormal["train"][public],
            tune_x=self.images["val"],
            tune_y=abnormal["val"],
        )


def octmnist(folder: Path | None, fetch: bool = False) -> Task:
    """Return the OctMNIST task.

    The private records are the training images with Drusen and as many normal ones; the other
    training images are public. Settings are chosen on the validation images. All test images are
    queries, grouped by their original class. `fetch` downloads MedMNIST's file if it is missing.
    """
    scans = _read(folder, fetch)
    order = np.random.default_rng(0).permutation(len(scans.kinds["train"]))
    shuffled = scans.kinds["train"].numpy()[order]
    drusen, normal = order[shuffled == DRUSEN], order[shuffled == NORMAL]
    private = np.sort(np.concatenate([drusen, normal[: len(drusen)]]))
    return scans.task("octmnist", private, np.setdiff1d(order, private))


def octmnist_by_patient(folder: Path | None, fetch: bool = False) -> Task:
    """Return the same task with whole patients: no patient is both private and public.

    The private patients are those with a scan that shows Drusen, and normal ones until there are as
    many normal scans; their scans of other diseases are left out.
    """
    scans = _read(folder, fetch)
    if scans.patients is None:
        raise MissingData(
            f"{scans.path}: has no train_patient, the patient of each training scan; MedMNIST's "
            "file does not have it either: add it from the names of the original scans"
        )
    kinds, patients = scans.kinds["train"].numpy(), scans.patients
    private = set(patients[kinds == DRUSEN].tolist())
    normal = np.setdiff1d(patients[kinds == NORMAL], list(private))
    wanted = int((kinds == DRUSEN).sum())
    for patient in np.random.default_rng(0).permutation(normal).tolist():
        if int(((kinds == NORMAL) & np.isin(patients, list(private))).sum()) >= wanted:
            break
        private.add(patient)
    own = np.isin(patients, list(private))
    rows = np.flatnonzero(own & np.isin(kinds, (DRUSEN, NORMAL)))
    task = scans.task("octmnist-patients", rows, np.flatnonzero(~own))
    return replace(task, persons=torch.from_numpy(patients[rows]))


def _read(folder: Path | None, fetch: bool) -> _Scans:
    if fetch and folder is not None and not any((folder / name).is_file() for name in _NAMES):
        download(URL, folder / _NAMES[0], MD5)
    how = f"Get it with --download, or download {URL} (MD5 {MD5}) and put it there."
    path = find_file(folder, _NAMES, how)
    arrays = read_archive(
        path,
        [f"{part}_{kind}" for part in _PARTS for kind in ("images", "labels")],
        optional=["train_patient"],
    )
    for part in _PARTS:
        if arrays[f"{part}_images"].shape != (arrays[f"{part}_labels"].size, 28, 28):
            raise DamagedFile(
                f"{path}: {part}_images has shape {arrays[f'{part}_images'].shape}; "
                "expected one scan of 28x28 per label"
            )
    images = {part: floats(arrays[f"{part}_images"])[:, None] / 255.0 for part in _PARTS}
    kinds = {part: labels(arrays[f"{part}_labels"]) for part in _PARTS}
    drusen, normal = (int((kinds["train"] == kind).sum()) for kind in (DRUSEN, NORMAL))
    if not 0 < drusen < normal:
        raise DamagedFile(
            f"{path}: {drusen} scans with Drusen and {normal} normal ones to train on; "
            "expected some with Drusen, and more normal ones"
        )
    patients = arrays.get("train_patient")
    return _Scans(path, images, kinds, None if patients is None else patients.astype(np.int64))
