"""A progress bar for work that takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[int], None]
"""Told how much work was just done."""


@contextmanager
def progress_bar(description: str, total: int, show: bool) -> Iterator[Watch | None]:
    """Show a bar on the terminal while the work is done; gives None if it is not to be shown."""
    if not show:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
