"""A record's gradient depends on that record alone.

It does not depend on the row, other records, the block or the threads: every sum over features is
one of holdfast's loops, which adds the terms of each entry in the order of the inner index, and
everything else is element-wise. No library product, sum or convolution sees a record, except in a
frozen front, where it sees one record at a time. This test searches for oversights.
"""

from __future__ import annotations

import pytest
import torch

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.networks import loop
from holdfast.networks.boxes import GradientSums
from holdfast.records import Block, Rows

from .networks import RandomNetwork, draw

pytestmark = pytest.mark.usefixtures("no_shape_checks")

NETWORKS = 300
RECORDS = 21


def _train(drawn: RandomNetwork, x: torch.Tensor, y: torch.Tensor) -> hf.Certified:
    recipe = hf.Recipe(epochs=2, learning_rate=0.3, clip=0.03, batch_size=RECORDS, loss=drawn.loss)
    return hf.train(drawn.model, x, y, recipe, neighbours="replace", max_distance=1, progress=False)


def _same(one: hf.Certified, other: hf.Certified) -> bool:
    return all(
        torch.equal(getattr(a, end)[name], getattr(b, end)[name])
        for a, b in zip(one.ladder, other.ladder, strict=True)
        for name in a.box
        for end in ("lower", "upper")
    )


def _sums(job: loop.Job, certified: hf.Certified, blocks: list[Block]) -> dict[str, torch.Tensor]:
    """Return the summed gradients over the widest box of training, in whole units."""
    tally = GradientSums(
        {name: job.network.parameters[name] for name in job.network.trainable}, job.neighbours, 0, 0
    )
    for block in blocks:
        loop._add_block(
            job,
            job.network.first_input(block.features),
            block,
            False,
            certified.ladder[-1].box,
            tally,
        )
    assert not any(tally.overflowed.values())
    return tally.totals


QUICK = 60  # networks; `make test-slow` runs all of them
PARTS = [
    pytest.param(
        range(first, first + 20),
        id=f"from {first}",
        marks=[pytest.mark.slow] if first >= QUICK else [],
    )
    for first in range(0, NETWORKS, 20)
]


@pytest.mark.parametrize("seeds", PARTS)
def test_row_order_other_records_blocks_and_threads_change_no_bit(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    for seed in seeds:
        drawn = draw(seed)
        x, y = drawn.records(RECORDS, seed)
        here = _train(drawn, x, y)
        order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(seed))
        with monkeypatch.context() as patch:
            patch.setattr(loop.Job, "block_rows", property(lambda job, rows=1 + seed % 9: rows))
            torch.set_num_threads(1 + seed % 2)
            try:
                there = _train(drawn, x[order].clone(), y[order])
            finally:
                torch.set_num_threads(threads)
        assert _same(here, there), f"network {seed}: {drawn}"
        _assert_other_records_do_not_matter(drawn, here, x, y)


def _assert_other_records_do_not_matter(
    drawn: RandomNetwork, certified: hf.Certified, x: torch.Tensor, y: torch.Tensor
) -> None:
    """With another record in front, the sums differ by exactly that record's gradient."""
    network = certified.network
    stranger, label = drawn.records(1, 10**6)
    features, labels = network.front(torch.cat([stranger, x])), torch.cat([label, y])
    job = loop.Job(network, certified.recipe, certified.neighbours, (), Rows.of(features, labels))
    whole = Block(features, labels)
    first, rest = Block(features[:1], labels[:1]), Block(features[1:].clone(), labels[1:])
    few = [
        Block(features[row : row + 5].clone(), labels[row : row + 5])
        for row in range(0, RECORDS + 1, 5)
    ]
    together, alone = _sums(job, certified, [whole]), _sums(job, certified, [rest])
    extra, apart = _sums(job, certified, [first]), _sums(job, certified, few)
    for name, total in together.items():
        assert torch.equal(total, alone[name] + extra[name]), f"{name}: {drawn}"
        assert torch.equal(total, apart[name]), f"{name}: {drawn}"


def test_every_layer_loss_front_and_type_is_drawn() -> None:
    from holdfast.layers import LAYERS
    from holdfast.layers.losses import LOSSES

    drawn = [draw(seed) for seed in range(NETWORKS)]
    assert set(LAYERS) <= {type(module) for each in drawn for module in each.model.modules()}
    assert {each.loss for each in drawn} == set(LOSSES)
    assert {each.dtype for each in drawn} == {torch.float32, torch.float64}
    narrow = [
        m
        for each in drawn
        for m in each.model.modules()
        if isinstance(m, torch.nn.Conv2d) and m.out_channels == 1
    ]
    assert len(narrow) > 30, "too few convolutions with one output channel, which once failed"


def test_strides_and_alignment_change_no_bit() -> None:
    """Products are the same for views with other strides and for any alignment."""
    from holdfast.intervals import OperandKind, product

    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        for rows, inner, columns in ((33, 9, 1), (7, 100, 5), (64, 8, 3), (1, 33, 7), (40, 17, 16)):
            left = torch.randn(rows, inner, generator=generator, dtype=dtype)
            low = torch.randn(inner, columns, generator=generator, dtype=dtype)
            high = low + torch.rand(inner, columns, generator=generator, dtype=dtype)
            wanted = product(OperandKind.POINT, Interval.point(left), Interval(low, high))
            for shift in range(8):
                store = torch.zeros(rows * inner + 8, dtype=dtype)
                moved = store[shift : shift + rows * inner].view(rows, inner)
                moved.copy_(left)
                turned = Interval(low.t().contiguous().t(), high.t().contiguous().t())
                for variant in (
                    Interval.point(moved),
                    Interval.point(left.t().contiguous().t()),
                    Interval(moved, left),
                ):
                    kind = OperandKind.POINT if variant.lower is variant.upper else OperandKind.ANY
                    found = product(kind, variant, turned)
                    assert torch.equal(found.lower, wanted.lower)
                    assert torch.equal(found.upper, wanted.upper)
