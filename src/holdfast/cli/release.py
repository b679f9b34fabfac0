"""The command `holdfast release`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import holdfast as hf

from .app import (
    DEFAULT_LEDGER,
    AsJson,
    LedgerAddress,
    app,
    command_context,
    load_model,
    print_json,
    refuse_output,
)


@app.command()
def release(
    model: Annotated[Path, typer.Argument(help="A linear head saved by `holdfast train`.")],
    out: Annotated[Path, typer.Option(help="Where to save the released head.")] = Path(
        "released.holdfast"
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon to spend on this release; all that is left if not given."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta to spend on this release, with --epsilon.")
    ] = None,
    signed: Annotated[
        bool,
        typer.Option("--signed", help="Refuse a head that was not signed with this ledger's key."),
    ] = False,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Release a linear head with noise, after charging the budget.

    The released head may be published and answers any number of queries free of charge: `holdfast
    ask released.holdfast table.csv`. If the same head was released before with the same options,
    that release is written again, free of charge. Exit code 3 means that the budget does not
    suffice.
    """
    with command_context(as_json) as console:
        refuse_output(out, (".holdfast",))
        if out.resolve() == model.resolve():
            raise hf.errors.InvalidInput(f"--out {out}: this would overwrite the trained head")
        if (epsilon is None) != (delta is None):
            raise hf.errors.InvalidInput("give both --epsilon and --delta, or neither")
        head = load_model(model)
        if not isinstance(head, hf.models.CertifiedHead):
            raise hf.errors.InvalidInput(
                f"{model}: only a single linear head can be released; train one with "
                "`holdfast train --model linear --members 1`"
            )
        part = None if epsilon is None or delta is None else hf.Budget(epsilon, delta)
        opened = hf.Ledger(ledger)
        released = hf.release_head(head, opened, budget=part, require_signature=signed)
        released.save(out)
        left = opened.status(head.dataset)
        about = released.release
        console.print(
            f"{out}: the released head, under {released.guarantee}.\n"
            f"Noise of standard deviation {about.noise:.3g} in each of "
            f"{released.weights.numel():,} weights; {left.remaining / left.limit:.0%} of the "
            f"budget is left.\n`holdfast ask {out} TABLE` gives its labels, free of charge; "
            f"`holdfast statement {out}` writes its privacy statement."
        )
        print_json(
            {"out": str(out), "guarantee": str(released.guarantee), **about.as_json()}, as_json
        )
