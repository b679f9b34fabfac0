"""Where data lies: a folder that is given, or that HOLDFAST_DATA names; what is missing is said, with how to get it."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..errors import DamagedFile, InvalidInput

VARIABLE = "HOLDFAST_DATA"


class MissingData(InvalidInput):
    """What an experiment needs is not here; the message says how to get it. Anything else that is wrong with data is no such excuse."""


def data_folder(given: Path | None) -> Path | None:
    """The folder given, or the one that the environment names, if any."""
    folder = given if given is not None else (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"{folder}: no such folder; give the folder of data with --data, or set {VARIABLE}")
    return folder


def find(folder: Path | None, names: Iterable[str], how: str) -> Path:
    """The first of the files that is there; raises with `how` to get one."""
    listed = list(names)
    for name in listed:
        if folder is not None and (folder / name).is_file():
            return folder / name
    where = (
        "no folder of data was given (--data, or the environment variable HOLDFAST_DATA)"
        if folder is None
        else f"{folder} has no such file"
    )
    raise MissingData(f"{' or '.join(listed)}: {where}. {how}")


def read_archive(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Arrays of a numpy archive; nothing in it is executed."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            missing = sorted(set(keys) - set(archive.files))
            if missing:
                raise DamagedFile(f"{path}: has no {missing[0]!r}; expected {', '.join(keys)}")
            return {key: archive[key] for key in keys}
    except (ValueError, TypeError, AttributeError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise DamagedFile(f"{path}: not a readable archive of numpy ({error}); get it again") from error


def download(url: str, path: Path, md5: str) -> Path:
    """Fetch a file, and put it in its place only if it is the one expected."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=60) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
        if found != md5:
            raise DamagedFile(f"{url}: MD5 {found}, expected {md5}: not the file it should be; try again later")
        part.replace(path)
    except OSError as error:
        raise MissingData(f"{url}: cannot be fetched ({error}); fetch it by hand and put it at {path}") from error
    finally:
        part.unlink(missing_ok=True)
    return path
