"""A progress bar for work that takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[int], None]
"""A function that is called with the amount of work just done."""


@contextmanager
def progress_bar(description: str, total: int, show: bool) -> Iterator[ProgressCallback | None]:
    """Show a progress bar on the terminal; yield None if `show` is false."""
    if not show:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
