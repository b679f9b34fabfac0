"""Loading models: read a file back, and refuse what training cannot have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .errors import DamagedFile, HoldfastError, InvalidInput
from .files import read_any
from .heads.certified import CertifiedHead
from .heads.released import KIND as RELEASED_KIND
from .heads.released import ReleasedHead
from .heads.saved import restore_head, restore_released
from .models import KIND, CertifiedEnsemble, CertifiedMember, tensors_below
from .networks.certified import Certified, restore_network
from .preprocessing import Preprocessing


def load(
    path: str | PathLike[str],
    *,
    prefix: nn.Module | None = None,
    offset: nn.Module | None = None,
) -> Certified | CertifiedHead | CertifiedEnsemble | ReleasedHead:
    """Read a saved model, ensemble or released head back.

    Args:
        path: The file that `save` wrote.
        prefix: The leading frozen layers, as one module from records to features, if the model
            begins with layers of types that holdfast does not write (a backbone). A digest of their
            weights and their features of a few probe records are compared with those of the saved
            model, bit for bit. For a head, the encoder.
        offset: The offset of a head, if it has layers of types that holdfast does not write; it is
            compared in the same way.

    Returns:
        The model or ensemble, which is as private as the records; or the released head.

    Raises:
        DamagedFile: If the file is damaged, or of another kind or version.
        InvalidInput: If a prefix or offset is needed but missing, given but not needed, or not that
            of the saved model.

    Example:
        >>> import holdfast as hf, torch
        >>> certified = hf.train(torch.nn.Linear(1, 2), [[-1.0], [1.0]], [0, 1],
        ...     hf.Recipe(batch_size=2), max_distance=1, progress=False)
        >>> certified.save("model.holdfast")
        >>> hf.load("model.holdfast").distances
        (1,)
    """
    path = Path(path)
    kind, header, tensors = read_any(path, KIND, RELEASED_KIND)
    try:
        if kind == RELEASED_KIND:
            released = restore_released(path, header, tensors, prefix, offset)
            return replace(released, preprocessing=_preprocessing(header, tensors))
        return _loaded(path, header, tensors, prefix, offset)
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError, ValueError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise DamagedFile(
            f"{path}: its header is not that of a model ({error!r}); "
            "restore it from a copy, or train again"
        ) from error


def _loaded(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: nn.Module | None,
    offset: nn.Module | None,
) -> Certified | CertifiedHead | CertifiedEnsemble:
    preprocessing = _preprocessing(header, tensors)
    members = tuple(
        _restore(path, about, tensors_below(tensors, f"{number}/"), prefix, offset)
        for number, about in enumerate(header["members"])
    )
    if header["ensemble"]:
        return CertifiedEnsemble(members, preprocessing, header["signature"], from_file=True)
    (model,) = members
    assert isinstance(model, Certified | CertifiedHead)
    return replace(model, preprocessing=preprocessing, signature=header["signature"])


def _preprocessing(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Preprocessing | None:
    about = header["preprocessing"]
    return None if about is None else Preprocessing.load_from(about, tensors)


def _restore(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: nn.Module | None,
    offset: nn.Module | None,
) -> CertifiedMember:
    if "scheme" in header:
        return restore_head(path, header, tensors, prefix, offset)
    if offset is not None:
        raise InvalidInput(f"{path}: only a linear head has an offset; load it without offset=")
    return restore_network(path, header, tensors, prefix)
