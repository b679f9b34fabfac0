"""Sums over windows of an image: patches, their transpose (fold) and pooling, by tables of cell numbers.

A table has one column per output and one row per term; an entry is the number of an input cell, or
`EMPTY`. Outputs are added up term by term in the order of the rows, by element-wise additions, so the
order depends on the shapes alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

EMPTY = -1

Table = Int64[Tensor, "terms outputs"]


def gather_sum(values: Float[Tensor, "rows cells"], table: Table) -> Float[Tensor, "rows outputs"]:
    """Add up, for every output, the cells that its column of the table names."""
    with_zero = torch.cat([values, values.new_zeros(len(values), 1)], 1)  # EMPTY, the last cell, is 0
    table = table.to(values.device)
    total = with_zero[:, table[0]]
    for terms in table[1:]:
        total = total + with_zero[:, terms]
    return total


def transpose(table: Table, cells: int) -> Int64[Tensor, "entries {cells}"]:
    """Return the table of the transposed map: for every cell the outputs that it enters, ascending."""
    outputs = torch.arange(table.shape[1]).expand_as(table)[table != EMPTY]
    entered = table[table != EMPTY]
    order = (entered * (table.shape[1] + 1) + outputs).argsort()
    entered, outputs = entered[order], outputs[order]
    counts = torch.bincount(entered, minlength=cells)
    place = torch.arange(len(entered)) - (counts.cumsum(0) - counts)[entered]
    result = torch.full((max(1, int(counts.max())), cells), EMPTY)
    result[place, entered] = outputs
    return result


def windows(rows: list[range], columns: list[range], width: int) -> Table:
    """Return the table of all pairs of a range of rows and a range of columns of an image."""
    cells = [[row * width + column for row in down for column in across] for down in rows for across in columns]
    most = max(1, *(len(window) for window in cells))
    return torch.tensor([window + [EMPTY] * (most - len(window)) for window in cells]).T.contiguous()
