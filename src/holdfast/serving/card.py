"""Model cards in the format of Hugging Face, from a model's privacy statement."""

from __future__ import annotations

import re

from ..checks import escape_markdown
from ..errors import InvalidInput
from ..ledger import BudgetStatus
from ..models import CertifiedModel, ReleasedHead
from ..version import __version__
from .statement import privacy_statement

_HEADER = """\
---
library_name: holdfast
pipeline_tag: {task}
tags:
- differential-privacy
- {kind}
---

# {title}

{about}

## Use

{use}

## What it was trained with

{facts}

## What it must not be used for

- Decisions about a person that the person cannot contest: a label may be wrong, and private answers
  are wrong a little more often.
- Claims about accuracy: this card holds none, because a score on private records is not private.
  Measure it on public records.

{statement}"""

_ANSWERS = (
    "Private answers of a classifier that holdfast {version} trained with certificates. The file "
    "of the model is as private as the records: publish this card, not the file."
)
_RELEASED = (
    "The weights of a linear classifier, released by holdfast {version} with noise: the file may "
    "be published, and answers any number of queries."
)


def model_card(model: CertifiedModel | ReleasedHead, status: BudgetStatus | None = None) -> str:
    """Return a model card in Markdown, with the metadata of Hugging Face in front.

    It holds public facts only: no accuracy, and no number of records.

    Args:
        model: A trained model, or a released head.
        status: The status of the budget of the model's data set; not needed for a released head.

    Raises:
        InvalidInput: If the status is missing, or is that of another data set or relation.
    """
    released = isinstance(model, ReleasedHead)
    if isinstance(model, ReleasedHead):
        statement, about = model.statement(), _RELEASED
        use = '```python\nimport holdfast as hf\n\nhf.load("released.holdfast").predict(rows)\n```'
    else:
        if status is None:
            raise InvalidInput("status is None: expected what ledger.status(name) returns")
        statement, about = privacy_statement(model, status), _ANSWERS
        use = (
            "Ask the owner. Each new question is charged to a budget, and answers end with it:\n\n"
            "```\nholdfast ask model.holdfast questions.csv --analyst NAME\n```"
        )
    return _HEADER.format(
        task="tabular-classification" if _reads_tables(model) else "other",
        kind="released-weights" if released else "private-prediction",
        title=f"Classifier of {escape_markdown(model.dataset)}",
        about=about.format(version=__version__),
        use=use,
        facts="\n".join(f"- {fact}" for fact in _facts(model)),
        statement=re.sub(r"^#", "##", statement, flags=re.MULTILINE),
    )


def _reads_tables(model: CertifiedModel | ReleasedHead) -> bool:
    return model.preprocessing is not None and bool(model.preprocessing.columns)


def _facts(model: CertifiedModel | ReleasedHead) -> list[str]:
    names = ", ".join(model.class_names(range(model.classes)))
    relation = model.neighbours
    facts = [
        f"classes: {escape_markdown(names)}",
        f"unit of privacy: one {relation.unit}, under `{relation.value}` ({relation.move})",
    ]
    rules = model.preprocessing
    if rules is not None and rules.columns:
        columns = ", ".join(column.name for column in rules.columns)
        facts.append(f"columns: {escape_markdown(columns)}")
    return facts
