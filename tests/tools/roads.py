"""Count the modules that run when a table is trained, and when one prediction is answered.

    python -m tests.tools.roads

A module counts if at least one of its functions is executed, in any thread; module bodies and class
bodies do not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast as hf

ROOT = Path(hf.__file__).parent


@contextmanager
def traced(modules: set[str]) -> Iterator[None]:
    """Add the modules of holdfast that run meanwhile, in this thread and in new ones."""
    start = str(ROOT) + os.sep

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_name != "<module>" and code.co_flags & 1  # nor a class body
        if event == "call" and is_function and code.co_filename.startswith(start):
            path = Path(code.co_filename).relative_to(ROOT).with_suffix("")
            modules.add("/".join(path.parts))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def train_a_table(folder: Path) -> set[str]:
    """Train a linear head on a CSV by the command line, and return the modules that ran."""
    from typer.testing import CliRunner

    from holdfast.cli import app
    from tests.service.parts import SCHEMA, as_csv, make_rows

    table, schema = folder / "table.csv", folder / "schema.toml"
    table.write_text(as_csv(make_rows(1000, 0)))
    schema.write_text(SCHEMA)
    command = ["train", str(table), "--label", "outcome", "--schema", str(schema)]
    command += ["--batch-size", "1000", "--out", str(folder / "model.holdfast")]
    modules: set[str] = set()
    with traced(modules):
        result = CliRunner().invoke(app, command)
    if result.exit_code:
        raise SystemExit(result.output)
    return modules


def answer_a_prediction(folder: Path) -> set[str]:
    """Answer one POST for two queries, one of them new, and return the modules that ran."""
    from tests.service.conftest import Served
    from tests.service.parts import ROW, save_model

    modules: set[str] = set()
    with traced(modules):  # from the beginning, because a thread that exists is not traced
        served = Served(save_model(folder), folder)
        with served.http:
            served.ask(ROW)
            modules.clear()
            reply = served.ask(ROW, ROW | {"age": 30})
            counted = set(modules)
    if reply.status_code != 200:
        raise SystemExit(reply.text)
    return counted


def main() -> None:
    for road in (train_a_table, answer_a_prediction):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HOLDFAST_HOME"] = folder
            modules = sorted(road(Path(folder)))
        print(f"{road.__name__}: {len(modules)} modules\n  {', '.join(modules)}")


if __name__ == "__main__":
    main()
