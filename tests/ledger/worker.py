"""A client process that writes every answer to its log, on disk, before it asks again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import holdfast as hf

from .parts import query


def ask_all(
    address: str,
    home: str,
    model: str,
    log: str,
    analyst: str,
    first: int,
    count: int,
    ready: Any = None,
) -> None:
    """Ask queries first..first+count-1, starting where the log ends.

    The last logged query is asked again, because its line may have been lost.
    """
    predictor = hf.PrivatePredictor(hf.load(model), hf.Ledger(address, home=home))
    done = (
        [json.loads(line) for line in Path(log).read_text().splitlines()]
        if Path(log).exists()
        else []
    )
    start = max((line["query"] for line in done), default=first)
    if ready is not None:
        ready.set()
    with open(log, "a") as file:
        for number in range(start, first + count):
            try:
                answer = predictor.ask(query(number), analyst=analyst)
                line = {"query": number, "label": answer.label, "cost": answer.cost}
            except hf.BudgetExhausted:
                line = {"query": number, "refused": True}
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
