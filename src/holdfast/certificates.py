"""Certificates: the labels of queries, and the distances up to which they are stable.

The stable distance of a model is the largest k such that every model in the box of distance k gives
one label. Boxes nest to the last bit, so a label that is certified in one box is certified in all
smaller ones, and the distance can be found by bisection (docs/theory/nesting.md).

The stable distance of an ensemble is the number of records that can move before the vote may
change. Members are trained on disjoint parts of the records, so each move touches one member, and
changing the vote of member i takes at least its distance + 1 moves. Ties in the vote go to the
larger label (docs/theory/ensembles.md).

A model that gives every query the same label is perfectly stable, and as accurate as the commonest
label is common. Everything here is NOT private and for the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor

from .errors import InvalidInput, warn
from .relations import Neighbours


@dataclass(frozen=True, eq=False)
class Certificate:
    """A label per query and the distance up to which it is stable.

    NOT private: both depend on the private records.

    Args:
        labels: The labels, one int64 per query.
        distances: The stable distances, one int64 per query; 0 if a query is not certified at all.
        neighbours: The relation that the distances hold for.
        classes: The number of classes.
        nested: Whether P1 and P2 below hold.
        votes: The votes of an ensemble: (queries, classes).
        reach: The largest distance that a query could have, which is public; None if it is unknown.

    Raises:
        InvalidInput: If shapes, types or ranges do not fit.

    Guarantees:
        For nested certificates under all relations but REMOVE (docs/theory/nesting.md, persons.md):
        P1: between neighbouring data sets, the distance of a query changes by at most 1.
        P2: if either distance is at least 1, both data sets give the query the same label.

    Example:
        >>> import holdfast as hf, torch
        >>> labels, distances = torch.tensor([1, 0]), torch.tensor([7, 2])
        >>> certificate = hf.Certificate(labels, distances, "add_remove", 2)
        >>> certificate.share(5)
        0.5
    """

    labels: Tensor  # int64
    distances: Tensor  # int64; 0: not certified at any distance
    neighbours: Neighbours
    classes: int
    _: KW_ONLY
    nested: bool = True
    votes: Tensor | None = None  # only for ensembles: (queries, classes)
    reach: int | None = None  # the largest possible distance (public); None: unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", Neighbours.of(self.neighbours))
        for name in ("labels", "distances"):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                raise InvalidInput(f"{name} is a {type(value).__name__}: expected an int64 tensor")
            if value.dtype != torch.int64 or value.dim() != 1:
                raise InvalidInput(
                    f"{name} is {value.dtype} {tuple(value.shape)}: expected one int64 per query"
                )
        if self.labels.shape != self.distances.shape:
            raise InvalidInput(
                f"{len(self.labels)} labels and {len(self.distances)} distances: "
                "expected as many labels as distances"
            )
        if len(self.labels) and (
            int(self.labels.min()) < 0
            or int(self.labels.max()) >= self.classes
            or int(self.distances.min()) < 0
        ):
            raise InvalidInput(
                f"labels must lie in 0..{self.classes - 1} and distances must not be negative"
            )
        if self.votes is not None and (
            self.votes.dtype != torch.int64 or self.votes.shape != (len(self.labels), self.classes)
        ):
            raise InvalidInput(
                f"votes are {self.votes.dtype} {tuple(self.votes.shape)}: expected int64, one "
                "row per query and one column per class"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Certificate:
        """Return the certificate of one query."""
        rows = slice(row, row + 1)
        votes = None if self.votes is None else self.votes[rows]
        return replace(self, labels=self.labels[rows], distances=self.distances[rows], votes=votes)

    @staticmethod
    def joined(parts: Sequence[Certificate]) -> Certificate:
        """Return one certificate for the queries of several, by the same model without votes."""
        labels = torch.cat([part.labels for part in parts])
        return replace(parts[0], labels=labels, distances=torch.cat([p.distances for p in parts]))

    def share(self, distance: int) -> float:
        """Return the share of queries that are certified at a distance. NOT private.

        Args:
            distance: The distance, or the rank on a sparse grid.

        Raises:
            InvalidInput: If there are no queries.
        """
        if not len(self):
            raise InvalidInput("the certificate has no queries: there is no share to compute")
        return float((self.distances >= distance).double().mean())


Labels = Int64[Tensor, " queries"]


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


_NEARLY_ALL = 0.98
NO_BETTER = 0.005
"""An accuracy that exceeds the share of the commonest label by less is no better than it."""

_RARE = 0.2  # the share of all other classes, below which rows of the commonest are dropped first
_BY_CLASS = 0.1  # of balanced accuracy above that of guessing, from which labels are of use
_NOTHING = "Certified shares are meaningless in this case. Try: "
_ADVICE_FOR_A_HEAD = (
    _NOTHING + "a logarithmic scale for amounts and counts (log = true in the schema); ranges that "
    "fit the usual values; whitening with public rows; a larger budget, fewer queries or a larger "
    "travel"
)
_ADVICE_FOR_A_NETWORK = (
    _NOTHING + "a linear head (train_linear, --model linear) first, which needs no choice of "
    "steps; else whitening with public rows, one or two steps, and several learning rates"
)
_ADVICE_IF_RARE = (
    _NOTHING + "drop rows of the commoner class by a public rule, before training "
    "(docs/rare-classes.md)"
)


def why_useless(
    labels: Tensor, right: Tensor | None = None, names: Sequence[str] = (), network: bool = False
) -> str | None:
    """Return why the labels of some queries are of little use, and what to try, or None.

    Args:
        labels: The labels that a model gives.
        right: The right answers, if they are known.
        names: The names of the classes, if they have names.
        network: Whether the model is a network, which needs other advice than a head.
    """
    advice = _ADVICE_FOR_A_NETWORK if network else _ADVICE_FOR_A_HEAD
    if not len(labels):
        return None
    given, share = _commonest(labels)
    name = names[given] if names else str(given)
    if right is None:
        if share >= _NEARLY_ALL and len(labels) > 1:
            return f"the model gives the label {name} to {share:.1%} of the queries. {advice}"
        return None
    expected, common = _commonest(right)
    accuracy = float((labels == right).double().mean())
    usual = names[expected] if names else str(expected)
    if common == 1.0 or accuracy > common + NO_BETTER:
        return None
    by_class = [(labels == right)[right == each].double().mean() for each in set(right.tolist())]
    balanced = float(torch.stack(by_class).mean())
    if balanced > 1.0 / max(2, len(names)) + _BY_CLASS:
        return None  # it tells the classes apart, at another threshold than accuracy asks for
    text = (
        f"accuracy {accuracy:.3f} is no better than always answering {usual}, which is right for "
        f"{common:.3f}"
    )
    if share >= _NEARLY_ALL:
        text += f"; the model gives the label {name} to {share:.1%}"
    text += f"; balanced accuracy {balanced:.3f}"
    return f"{text}. {_ADVICE_IF_RARE if common > 1.0 - _RARE else advice}"


def warn_if_useless(
    labels: Tensor,
    right: Tensor | None = None,
    names: Sequence[str] = (),
    network: bool = False,
) -> None:
    """Warn the owner of labels that are of little use, with what to try. NOT private."""
    why = why_useless(labels, right, names, network)
    if why is not None:
        warn(f"NOT private: {why}")


def warn_after_training(labels: Tensor, right: Tensor, names: Sequence[str], network: bool) -> None:
    """Warn the owner of a model that says nothing about its own records. NOT private."""
    if len(right) and len(set(right.tolist())) == 1:
        count = "the only record is" if len(right) == 1 else f"all {len(right):,} records are"
        warn(
            f"NOT private: {count} of the class {names[int(right[0])]}, so there is nothing to "
            "learn: train on records of every class"
        )
    else:
        warn_if_useless(labels, right, names, network)


def _commonest(labels: Tensor) -> tuple[int, float]:
    """Return the commonest label and its share."""
    counts = torch.bincount(labels)
    return int(counts.argmax()), float(counts.max()) / len(labels)
