"""Stable distances of models and of votes.

The stable distance of a model is the largest k such that every model in the box of distance k gives
one label. Boxes nest to the last bit, so a label that is certified in one box is certified in all
smaller ones, and the distance can be found by bisection (docs/theory/nesting.md).

The stable distance of an ensemble is the number of records that can move before the vote may
change. Members are trained on disjoint parts of the records, so each move touches one member, and
changing the vote of member i takes at least its distance + 1 moves. Ties in the vote go to the
larger label (docs/theory/ensembles.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import InvalidInput
from ..kernels import require_ieee
from ..layers import Network, Outputs
from ..layers.base import pairs
from ..training.bounds import ParameterBounds
from ..workers import no_grad_no_autocast, workers
from .certificate import Certificate

NO_LABEL = -1
"""The value in place of a label if the models in a box do not all give the same one."""

Labels = Int64[Tensor, " queries"]
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


_UNREACHABLE = 1 << 40  # a number of moves above any sum of distances


def certify_vote(members: list[Certificate]) -> Certificate:
    """Return the certificate of the vote, given the members' certificates of the same queries.

    Guarantees:
        P1 and P2 of `Certificate`. The distance is one less than the exact number of moves that
        change the vote, provided that each member's vote can be changed by its distance + 1 moves.
    """
    if len({(member.neighbours, member.classes, len(member)) for member in members}) != 1:
        raise InvalidInput(
            "members' certificates: "
            "expected at least one, all of the same queries, relation and number of classes"
        )
    labels = torch.stack([member.labels for member in members], 1)
    costs = torch.stack([member.distances for member in members], 1) + 1
    first = members[0]
    votes = count_votes(labels, first.classes)
    winner = winners(votes)
    kept, rivals = (
        _cumulative_costs(costs, labels == winner[:, None]),
        torch.full_like(winner, _UNREACHABLE),
    )
    for rival in range(first.classes):
        lead = votes.gather(1, winner[:, None])[:, 0] - votes[:, rival] + (winner > rival)
        neither = _cumulative_costs(costs, (labels != winner[:, None]) & (labels != rival))
        price = _moves_to_overtake(lead, kept, neither)
        rivals = torch.minimum(rivals, torch.where(winner == rival, _UNREACHABLE, price))
    reaches = [member.reach + 1 for member in members if member.reach is not None]
    reach = sum(reaches) - 1 if len(reaches) == len(members) else None
    return Certificate(
        winner,
        rivals - 1,
        first.neighbours,
        first.classes,
        nested=all(m.nested for m in members),
        votes=votes,
        reach=reach,
    )


def _moves_to_overtake(
    lead: Int64[Tensor, " queries"], kept: Tensor, neither: Tensor
) -> Int64[Tensor, " queries"]:
    """Return the fewest moves that make up a lead of `lead` votes.

    A vote that goes from the winner to the rival counts twice; any other vote that goes to the
    rival counts once.
    """
    best = torch.full_like(lead, _UNREACHABLE)
    for taken in range(kept.shape[1]):
        rest = (lead - 2 * taken).clamp(min=0)
        price = (
            kept[:, taken] + neither.gather(1, rest.clamp(max=neither.shape[1] - 1)[:, None])[:, 0]
        )
        best = torch.where(rest < neither.shape[1], torch.minimum(best, price), best)
    return best


def _cumulative_costs(
    costs: Int64[Tensor, "queries members"], chosen: Tensor
) -> Int64[Tensor, "queries prices"]:
    """Return the total cost of the n cheapest chosen members, for n = 0, 1, 2, ...

    It is _UNREACHABLE if fewer than n members are chosen.
    """
    ordered = (
        torch.where(chosen, costs, _UNREACHABLE).sort(1).values.cumsum(1).clamp(max=_UNREACHABLE)
    )
    return torch.cat([torch.zeros_like(ordered[:, :1]), ordered], 1)


def count_votes(
    labels: Int64[Tensor, "queries members"], classes: int
) -> Int64[Tensor, "queries classes"]:
    """Return the number of members that vote for each class."""
    return torch.stack([(labels == label).sum(1) for label in range(classes)], 1)


def winners(votes: Int64[Tensor, "queries classes"]) -> Int64[Tensor, " queries"]:
    """Return the label with the most votes; ties go to the larger label."""
    most = votes.amax(1, keepdim=True)
    return votes.shape[1] - 1 - (votes == most).flip(1).long().argmax(1)


def paper_distance(members: list[Certificate]) -> Certificate:
    """Return the paper's distance for two classes, clamped at 0, for simulated comparisons only.

    It can jump between neighbouring data sets (nested=False), so mechanisms that use distances
    refuse to release answers from it.
    """
    ours = certify_vote(members)
    assert ours.votes is not None
    flips = (ours.votes[:, 1] - ours.votes[:, 0]).abs().add(1) // 2
    distances = torch.stack([member.distances for member in members], 1).sort(1).values.cumsum(1)
    distances = torch.cat([torch.zeros_like(distances[:, :1]), distances], 1)
    paper = (distances.gather(1, flips[:, None])[:, 0] + flips - 1).clamp(min=0)
    return Certificate(
        ours.labels, paper, ours.neighbours, ours.classes, nested=False, votes=ours.votes
    )
