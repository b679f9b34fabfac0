"""Certified networks: boxes per distance, stable distances of queries, and files of networks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..certificates import Certificate, Labels
from ..checks import check_integer
from ..errors import DamagedFile, InvalidInput
from ..intervals import Interval
from ..kernels import require_ieee
from ..layers import Network, Outputs
from ..layers.base import pairs
from ..layers.registry import describable, describe, nest, rebuild
from ..models import (
    CertifiedMember,
    EnsemblePart,
    is_in_layers,
    surplus_facts,
    tensors_below,
    weights_digest,
)
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..workers import no_grad_no_autocast, workers
from .boxes import ParameterBounds, nominal_parameters
from .diagnosis import Diagnosis
from .diagnosis import diagnose as diagnose_growth
from .loop import Growth, diagnosed_distance
from .recipe import Recipe

NO_LABEL = -1
"""The value in place of a label if the models in a box do not all give the same one."""


Ladder = Sequence[ParameterBounds]
"""Boxes of increasing distance, starting with distance 0."""


def certify(
    network: Network, ladder: Ladder, queries: Float[Tensor, "queries ..."]
) -> tuple[Labels, Labels]:
    """Return the labels and stable distances of many queries, for the owner.

    `queries` holds features, as computed by the frozen layers in front of the network. The distance
    is the *rank*: the number of boxes beyond the first that are certified. If the ladder is 0, 1,
    2, ..., that is k itself; on a sparse ladder it is the rank that changes by at most 1 between
    neighbours, not the value. A query that overflows in some box is not certified from that box on;
    if it overflows at distance 0, its label is 0. The same holds for all queries if the box itself
    has outgrown the float range.

    Queries that have reached the same box are evaluated as a group. The number of groups depends on
    the distances, so the running time reveals something about them; code that serves answers uses
    `certify_one` instead.

    Guarantees:
        P1 and P2 of `Certificate`. A query's result does not depend on the other queries.
    """
    blocks = torch.split(queries, network.block_rows) if len(queries) else ()
    with workers() as pool:
        parts = list(pool.map(lambda block: _bisect_groups(network, ladder, block), blocks))
    if not parts:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    return torch.cat([labels for labels, _ in parts]), torch.cat([ranks for _, ranks in parts])


def certify_one(network: Network, ladder: Ladder, query: Float[Tensor, "1 ..."]) -> tuple[int, int]:
    """Return the label and stable distance of one query, with work independent of the outcome.

    Guarantees:
        Every query is evaluated in the same number of boxes, 1 + ceil(log2(len(ladder))), each time
        with the same operations.
    """
    farthest = len(ladder) - 1
    require_ieee()
    with no_grad_no_autocast():
        labels, agreed = _nominal(network, ladder[0], query)
        position = 0
        for bit in reversed(range(farthest.bit_length())):
            candidate = position + (1 << bit)
            found = _common_label_in_box(network, ladder[min(candidate, farthest)], query)
            stable = bool((found == agreed) & (agreed != NO_LABEL))
            position = candidate if stable and candidate <= farthest else position
    return int(labels), position


def _bisect_groups(network: Network, ladder: Ladder, queries: Tensor) -> tuple[Labels, Labels]:
    """Bisect all queries at once, evaluating those that have reached the same box together."""
    with no_grad_no_autocast():
        labels, agreed = _nominal(network, ladder[0], queries)
        least = torch.zeros_like(labels)
        most = torch.where(agreed == NO_LABEL, 0, len(ladder) - 1)
        while bool((least < most).any()):
            middle = (least + most + 1) // 2
            for rank in torch.unique(middle[least < most]).tolist():
                rows = torch.nonzero((middle == rank) & (least < most))[:, 0]
                stable = _common_label_in_box(network, ladder[rank], queries[rows]) == agreed[rows]
                least[rows[stable]] = rank
                most[rows[~stable]] = rank - 1
    return labels, least


def _nominal(network: Network, bounds: ParameterBounds, queries: Tensor) -> tuple[Labels, Labels]:
    """Return the nominal labels, and the same with NO_LABEL for queries that no box can certify."""
    outputs = _outputs(network, bounds, queries)
    agreed = _common_label(outputs, bounds)
    settled = outputs.finite.cpu() & (not bounds.at_float_limit)
    return torch.where(
        agreed == NO_LABEL, torch.where(settled, _tie_label(outputs), 0), agreed
    ), agreed


def _common_label_in_box(network: Network, bounds: ParameterBounds, queries: Tensor) -> Labels:
    return _common_label(_outputs(network, bounds, queries), bounds)


def _outputs(network: Network, bounds: ParameterBounds, queries: Tensor) -> Outputs:
    box = network.box(bounds.box)
    return network.outputs_of(network.forward(network.first_input(queries), box), box)


def _common_label(outputs: Outputs, bounds: ParameterBounds) -> Labels:
    """Return the label that every model in the box strictly prefers.

    It is NO_LABEL if there is no such label or if a number overflowed.
    """
    logits, lead = outputs.logits, outputs.pairs
    count = logits.shape[1]
    if count == 1:
        label = (logits.lower[:, 0] > 0).long()
        strict = (logits.lower[:, 0] > 0) | (logits.upper[:, 0] < 0)
    else:
        first, second = pairs(count, lead.lower.device)
        wins = torch.zeros(len(lead.lower), count, dtype=torch.int64, device=lead.lower.device)
        wins.index_add_(1, first, (lead.lower > 0).long())
        wins.index_add_(1, second, (lead.upper < 0).long())
        most, label = wins.max(1)
        strict = most == count - 1
    return torch.where(strict & outputs.finite & (not bounds.at_float_limit), label, NO_LABEL).cpu()


def _tie_label(outputs: Outputs) -> Labels:
    """Return the nominal label at a tie: the lowest index among the largest logits.

    For a single logit it is 0, since the logit is not above 0.
    """
    logits = outputs.logits.lower
    return (logits == logits.amax(1, keepdim=True)).long().argmax(1).cpu()


@dataclass(frozen=True, eq=False)
class Certified(CertifiedMember):
    """A trained model with a box of parameters per distance, as `hf.train` returns it.

    NOT private: releasing answers requires a mechanism.

    Args:
        network: The model, split into frozen and bounded layers.
        recipe: The recipe, with `batch_size` filled in.
        neighbours: The relation that the boxes hold for.
        ladder: The boxes, with distance 0 first.
        dataset: The owner's name for the private data.
        record_shape: The shape of one record.
        growth: What each step did to the box of one distance, for `diagnose`.
        run_id: The random name of the training run, which identifies the model in the ledger.
        preprocessing: The public rules that are applied to queries.
        public_records: The number of public records in every batch.
        max_records_per_person: The most records of one person that were used; None: all.
        part: The part of the records that it was trained on, in an ensemble; None: all records.
        signature: The signature of the file that it was loaded from, by the key of a ledger.
        names: The names of the classes, if the preprocessing does not name them.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe = hf.Recipe(clip=0.5, batch_size=100)
        >>> model = torch.nn.Linear(1, 2)
        >>> certified = hf.train(model, x, y, recipe, max_distance=3, progress=False)
        >>> certified.certify([[1.0]]).distances
        tensor([3])
        >>> certified.bounds(2).contains(certified.model.state_dict())
        True
    """

    is_network: ClassVar[bool] = True

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    ladder: tuple[ParameterBounds, ...]  # distance 0 first
    dataset: str
    record_shape: tuple[int, ...]
    growth: tuple[Growth, ...]
    run_id: str  # random, drawn when training begins; identifies the model in the ledger
    preprocessing: Preprocessing | None = None
    public_records: int = 0  # number of public records in every batch
    max_records_per_person: int | None = None  # public; None: all records of a person are used
    part: EnsemblePart | None = None  # the part of an ensemble's records; None: all records
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger
    names: tuple[str, ...] = ()  # of the classes, if the preprocessing does not name them

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances above 0 that were run."""
        return tuple(bounds.distance for bounds in self.ladder[1:])

    @property
    def classes(self) -> int:
        return self.recipe.loss_function.classes(self.network.outputs)

    @cached_property
    def model(self) -> nn.Module:
        """The nominal model, as a torch module in evaluation mode."""
        return self.network.module(nominal_parameters(self.ladder[0]))

    def bounds(self, k: int) -> ParameterBounds:
        """Return the box of distance k.

        Args:
            k: 0, for the nominal model alone, or a distance that was run.

        Returns:
            The bounds, with `lower[name]`, `upper[name]` and `contains(state_dict)`.

        Raises:
            InvalidInput: If the distance was not run.
        """
        for bounds in self.ladder:
            if bounds.distance == k:
                return bounds
        raise InvalidInput(
            f"k={k!r}: expected 0 or one of the distances that were run: "
            f"{_abbreviated(self.distances)}"
        )

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return certify(self.network, self.ladder[:1], self.network.front(self.features(queries)))[0]

    def certify_member(self, features: Tensor) -> Certificate:
        """Return this model's certificate of queries that are given as `features` returns them."""
        labels, ranks = certify(self.network, self.ladder, self.network.front(features))
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def certify_member_constant_work(self, features: Tensor) -> Certificate:
        """Return the same as `certify_member`, with work independent of the outcome."""
        found = [
            certify_one(self.network, self.ladder, query[None])
            for query in self.network.front(features)
        ]
        labels = torch.tensor([label for label, _ in found], dtype=torch.int64)
        ranks = torch.tensor([rank for _, rank in found], dtype=torch.int64)
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def public_facts(self) -> list[str]:
        kinds = ", ".join(type(layer).__name__ for layer in self.network.layers)
        facts = [f"architecture and initial weights: {kinds}"]
        if self.network.front.layers:
            facts.append(f"{len(self.network.front.layers)} frozen layers in front")
        if self.public_records:
            facts.append(f"{self.public_records} public records, in every batch")
        return facts + surplus_facts(self.max_records_per_person)

    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        for name in self.network.trainable:
            for end in ("lower", "upper"):
                tensors[f"{name_prefix}{end}/{name}"] = torch.stack(
                    [getattr(bounds, end)[name] for bounds in self.ladder]
                )
        return {
            **save_network(self.network, name_prefix, tensors),
            "recipe": self.recipe.as_dict(),
            "neighbours": self.neighbours.value,
            "max_records_per_person": self.max_records_per_person,
            "distances": self.distances,
            "dataset": self.dataset,
            "record_shape": self.record_shape,
            "growth": [asdict(grown) for grown in self.growth],
            "public_records": self.public_records,
            "run_id": self.run_id,
            "part": None if self.part is None else self.part.as_dict(),
            **({"names": self.names} if self.names else {}),  # or old signatures would not hold
        }

    def diagnose(self) -> Diagnosis:
        """Return where the box of the middle distance grew fastest and what to change.

        NOT private.
        """
        start, end = self.network.parameters, nominal_parameters(self.ladder[0])
        travelled = {name: float((end[name] - start[name]).abs().double().mean()) for name in end}
        return diagnose_growth(
            self.growth, self.recipe, travelled, diagnosed_distance(self.distances)
        )


def _abbreviated(distances: tuple[int, ...]) -> str:
    return (
        ", ".join(map(str, distances))
        if len(distances) < 12
        else f"{distances[0]}, {distances[1]}, ..., {distances[-1]}"
    )


def save_network(network: Network, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the header of a network and add its tensors to `tensors`."""
    front = [name for name, _ in network.front.layers]
    foreign = not all(describable(module) for _, module in network.front.layers)
    saved_layers = (
        [layer.name for layer in network.layers]
        if foreign
        else [*front, *(layer.name for layer in network.layers)]
    )
    tensors |= {
        f"{name_prefix}model/{name}": value
        for name, value in network.model.state_dict().items()
        if is_in_layers(name, saved_layers)
    }
    tensors[f"{name_prefix}front"] = network.front.probe_features()
    return {
        "layers": [describe(name, network.model.get_submodule(name)) for name in saved_layers],
        "foreign_prefix": foreign,
        "front_weights": weights_digest(network.front),
        "trainable": network.trainable,
        "dtype": str(network.dtype).removeprefix("torch."),
    }


def restore_network(
    path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], prefix: nn.Module | None
) -> Certified:
    shape = tuple(header["record_shape"])
    dtype = getattr(torch, header["dtype"])
    network = Network.of(_model(path, header, tensors, dtype, prefix), shape)
    if header["front_weights"] != weights_digest(network.front) or not network.front.matches_probe(
        tensors["front"]
    ):
        if prefix is not None:
            raise InvalidInput(
                f"{path}: the prefix that was given computes other features than that of the "
                "saved model; pass the same frozen layers"
            )
        raise DamagedFile(
            f"{path}: the frozen layers compute other features here than where they were saved; "
            "use the same version of torch and the same kind of machine"
        )
    ladder = _ladder(path, header, tensors, network)
    return Certified(
        network=network,
        recipe=Recipe(**header["recipe"]),
        neighbours=Neighbours.of(header["neighbours"]),
        ladder=ladder,
        dataset=header["dataset"],
        record_shape=shape,
        growth=tuple(Growth(**grown) for grown in header["growth"]),
        run_id=header["run_id"],
        public_records=header["public_records"],
        max_records_per_person=header.get("max_records_per_person"),
        part=None if header["part"] is None else EnsemblePart(**header["part"]),
        names=_names(path, header, network),
    )


def _names(path: Path, header: dict[str, Any], network: Network) -> tuple[str, ...]:
    names = tuple(str(name) for name in header.get("names", ()))
    classes = Recipe(**header["recipe"]).loss_function.classes(network.outputs)
    if len(names) not in (0, classes):
        raise DamagedFile(
            f"{path}: {len(names)} names of {classes} classes; restore the file from a copy, or "
            "train again"
        )
    return names


def _ladder(
    path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], network: Network
) -> tuple[ParameterBounds, ...]:
    """Return the boxes of a file; raise DamagedFile unless they fit the parameters and nest."""
    distances = (0, *(check_integer("distances", k, 1) for k in header["distances"]))
    boxes: list[dict[str, Interval]] = [{} for _ in distances]
    for name in network.trainable:
        ends = [tensors[f"{end}/{name}"] for end in ("lower", "upper")]
        wanted = (len(distances), *network.parameters[name].shape)
        if any(tuple(end.shape) != wanted or end.dtype != network.dtype for end in ends):
            raise DamagedFile(
                f"{path}: the bounds of {name!r} do not fit the model's parameter, "
                f"{wanted[1:]} in {network.dtype}; "
                "restore the file from a copy, or train again"
            )
        for index, box in enumerate(boxes):
            box[name] = Interval(ends[0][index], ends[1][index])
    ladder = tuple(ParameterBounds(k, box) for k, box in zip(distances, boxes, strict=True))
    _check_nesting(path, ladder)
    return ladder


def _check_nesting(path: Path, ladder: tuple[ParameterBounds, ...]) -> None:
    """Raise DamagedFile unless the boxes nest, as the bisection over distances requires.

    Boxes that were written by training always nest.
    """
    for inner, outer in pairwise(ladder):
        if not outer.distance > inner.distance or not outer.encloses(inner):
            raise DamagedFile(
                f"{path}: the box of distance {outer.distance} does not enclose "
                f"that of distance {inner.distance}: this is not what training wrote; "
                "restore the file from a copy, or train again"
            )
    nominal_parameters(ladder[0])


def _model(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    prefix: nn.Module | None,
) -> nn.Module:
    if header["foreign_prefix"] and prefix is None:
        raise InvalidInput(
            f"{path}: this model begins with frozen layers that are not in the file; pass them "
            "as hf.load(path, prefix=module)"
        )
    if not header["foreign_prefix"] and prefix is not None:
        raise InvalidInput(f"{path}: this file holds the whole model; load it without prefix=")
    model = rebuild(header["layers"]).to(dtype).eval()
    model.load_state_dict(tensors_below(tensors, "model/"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in header["trainable"])
    if prefix is None:
        return model
    if not isinstance(prefix, nn.Module):
        raise InvalidInput(f"prefix is a {type(prefix).__name__}: expected a torch.nn.Module")
    layers = {about["name"]: model.get_submodule(about["name"]) for about in header["layers"]}
    return nest({"frozen prefix": copy.deepcopy(prefix).requires_grad_(False), **layers})
