"""Files in the safetensors format, with a JSON header and a digest of header and tensors.

They contain no pickle, and are written atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checks import refuse_unwritable
from .errors import DamagedFile, InvalidInput

_LOG = logging.getLogger(__name__)

FORMAT = 3
"""The version of the file format. Files of other versions are refused."""

_UNSOUND_FORMATS = ("1", "2")  # formats of releases that used a library's matrix products


def write(
    path: Path,
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    owner_only: bool = False,
) -> None:
    """Write header and tensors to a temporary file, then move it to `path`.

    With `owner_only`, nobody but the owner can read the file.
    """
    refuse_unwritable(path)
    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = header_to_json(header)
    metadata = {
        "kind": kind,
        "format": str(FORMAT),
        "header": text,
        "digest": digest(kind, text, held),
    }
    temporary = path.with_name(path.name + ".part")
    try:
        if owner_only:  # restrict the permissions before anything is written
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600, exist_ok=False)
        save_file(_copy_shared_tensors(held), temporary, metadata)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except (SafetensorError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise InvalidInput(f"{path}: cannot be written ({error})") from error
    _LOG.info("wrote %s (%s)", path, kind)


def read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file; raise DamagedFile if it is damaged, of another kind or of another version."""
    _, header, tensors = read_any(path, kind)
    return header, tensors


def read_any(path: Path, *kinds: str) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Read a file of one of several kinds; return its kind, header and tensors."""
    if not path.is_file():
        raise DamagedFile(
            f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}"
        )
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            _check_kind_and_format(path, metadata, kinds)
            names = file.keys()  # `file` is not a mapping
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise DamagedFile(
            f"{path}: not a readable holdfast file ({error}); "
            "restore it from a copy, or train again"
        ) from error
    if metadata.get("digest") != digest(metadata["kind"], metadata["header"], tensors):
        raise DamagedFile(
            f"{path}: the content does not match its digest: the file is damaged; "
            "restore it from a copy, or train again"
        )
    try:
        header = json.loads(metadata["header"])
    except (ValueError, RecursionError) as error:
        raise DamagedFile(
            f"{path}: the header is not readable ({type(error).__name__}); "
            "restore it from a copy, or train again"
        ) from None
    _LOG.info("read %s (%s)", path, metadata["kind"])
    return metadata["kind"], header, tensors


def _check_kind_and_format(path: Path, metadata: Mapping[str, str], kinds: tuple[str, ...]) -> None:
    if metadata.get("kind") not in kinds or "header" not in metadata:
        raise DamagedFile(
            f"{path}: expected a {' or '.join(kinds)}, "
            f"found {metadata.get('kind', 'another kind of file')!r}"
        )
    if metadata.get("format") in _UNSOUND_FORMATS:
        raise DamagedFile(
            f"{path}: file format {metadata['format']} was written by a version of holdfast whose "
            "certificates may be wrong (CHANGELOG.md, security); nothing in it can be used: train "
            "again, with hf.train or `holdfast train`"
        )
    if metadata.get("format") != str(FORMAT):
        raise DamagedFile(
            f"{path}: file format {metadata.get('format')}, this version of holdfast reads format "
            f"{FORMAT}; install the version that wrote it, or train again"
        )


def _copy_shared_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, with copies of those that share memory, which safetensors refuses."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        result[name] = value.clone() if value.untyped_storage().data_ptr() in seen else value
        seen.add(value.untyped_storage().data_ptr())
    return result


def header_to_json(header: Mapping[str, Any]) -> str:
    """Return a header as JSON text."""
    return json.dumps(header, sort_keys=True, allow_nan=False)


def digest(kind: str, header: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of format version, kind, header and tensors."""
    found = hashlib.sha256(f"{FORMAT}\n{kind}\n{header}\n".encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
