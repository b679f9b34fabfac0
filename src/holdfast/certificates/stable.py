"""The stable distance of a model: the largest k such that every model in the box of distance k gives one label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import Overflow
from ..intervals import Interval
from ..layers import Network, Outputs, plainly
from ..layers.base import pairs
from ..training.bounds import ParameterBounds


def certify(
    network: Network, ladder: Sequence[ParameterBounds], queries: Float[Tensor, "queries ..."]
) -> tuple[Int64[Tensor, " queries"], Int64[Tensor, " queries"]]:
    """Labels and stable distances of queries (features, behind the prefix).

    `ladder` holds the boxes of growing distance, beginning with distance 0. The distance returned is the *rank*: how
    many boxes beyond the first are certified without a gap. Where the ladder is 0, 1, 2, ... that is k itself; on a
    sparse ladder the rank is what changes by at most 1 between neighbours, and the value is not.

    Guarantees
    ----------
    P1 and P2 of `Certificate`. The work does not depend on labels or distances (only a query that overflows costs its
    chunk more looks, at one half of it at a time).
    """
    with plainly():
        parts = [
            _chunk(network, ladder, queries[first : first + network.query_rows]) for first in range(0, len(queries), network.query_rows)
        ]
    if not parts:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    return torch.cat([labels for labels, _ in parts]), torch.cat([ranks for _, ranks in parts])


def never_overflows(network: Network, ladder: Sequence[ParameterBounds], largest: float) -> bool:
    """Whether no query with features (behind the prefix) in -largest..largest can overflow in any of the boxes.

    Where that is so, `certify` does the same work for all of them. A weight of either sign and the largest size, on
    features of the largest size, covers all others: the first layer is linear, and later ones work on intervals.
    """
    sizes = {name: torch.stack([torch.maximum(b.lower[name].abs(), b.upper[name].abs()) for b in ladder]).amax(0) for name in ladder[0].box}
    shape = (2, *network.prefix(torch.zeros(1, *network.prefix.record_shape, dtype=network.dtype)).shape[1:])
    corners = torch.full(shape, largest, dtype=network.dtype, device=network.device)
    corners[1] *= -1
    try:
        with plainly():
            box = network.box({name: Interval(-size, size) for name, size in sizes.items()})
            outputs = network.outputs_of(network.forward(Interval.point(corners), box)[-1], box)
            _agreed_label(outputs)
    except Overflow:
        return False
    return True


def _chunk(network: Network, ladder: Sequence[ParameterBounds], queries: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk, padded to a fixed number of rows: a query's answer does not depend on the queries beside it.

    A query whose numbers overflow at some box is not certified from that box on; with distance 0 its label is 0.
    """
    padded = queries.new_zeros(network.query_rows, *queries.shape[1:])
    padded[: len(queries)] = queries
    unbroken = torch.ones(len(padded), dtype=torch.bool, device=network.device)
    labels = torch.zeros(len(padded), dtype=torch.int64, device=network.device)
    ranks = torch.zeros_like(labels)
    try:
        features = Interval.point(padded.to(network.device))
        for bounds in ladder:
            box = network.box(bounds.box)
            outputs = network.outputs_of(network.forward(features, box)[-1], box)
            agreed = _agreed_label(outputs)
            if bounds is ladder[0]:
                labels = torch.where(agreed >= 0, agreed, _fallback(outputs))
                unbroken = agreed >= 0
            else:
                unbroken = unbroken & (agreed == labels)
                ranks += unbroken
    except Overflow:
        if len(queries) > 1:  # one query may be to blame, and must not cost the others their certificate
            halves = [_chunk(network, ladder, half) for half in queries.tensor_split(2)]
            return torch.cat([label for label, _ in halves]), torch.cat([rank for _, rank in halves])
    return labels[: len(queries)].cpu(), ranks[: len(queries)].cpu()


def _agreed_label(outputs: Outputs) -> Int64[Tensor, " records"]:
    """The one label that every model in the box gives, strictly; -1 where there is none.

    Logits must be finite at every distance, not only at 0 where ties are settled on them: otherwise a query could
    overflow in a neighbour's model of distance 0 and yet be certified in the box around it.
    """
    logits = outputs.logits
    if outputs.count == 1:
        agreed = torch.full_like(logits.lower[:, 0], -1, dtype=torch.int64)
        agreed[logits.upper[:, 0] < 0] = 0
        agreed[logits.lower[:, 0] > 0] = 1
        return agreed
    lead = outputs.pairs
    first, second = pairs(outputs.count, lead.lower.device)
    wins = torch.zeros(len(lead.lower), outputs.count, dtype=torch.int64, device=lead.lower.device)
    wins.index_add_(1, first, (lead.lower > 0).long())
    wins.index_add_(1, second, (lead.upper < 0).long())
    most, label = wins.max(1)
    return torch.where(most == outputs.count - 1, label, -1)


def _fallback(outputs: Outputs) -> Int64[Tensor, " records"]:
    """The nominal label at a tie: the lowest index among the largest logits; of one logit: 0, since it is not above 0."""
    logits = outputs.logits.lower
    return (logits == logits.amax(1, keepdim=True)).long().argmax(1)
