"""What an analyst sees of a retraining does not depend on whether the records changed meanwhile.

Once, questions were known by a hash of the private model: asked again after a retraining under the same name, a question
was free if the records were the same and charged if one had joined.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf

TENTH = hf.StableResponse(0.1)
QUERY = torch.tensor([0.3, 1.0])
X = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


def trained(records: int, **options: object) -> hf.Certified:
    torch.manual_seed(0)
    recipe = hf.Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=40)
    return hf.train(nn.Sequential(nn.Linear(2, 2)), X[:records], Y[:records], recipe, max_distance=2, dataset="ward", progress=False, **options)  # fmt: skip


def seen(folder: Path, after: int, **options: object) -> list[object]:
    """What an analyst sees who asks, waits for a retraining on `after` records, and asks again."""
    folder.mkdir()
    ledger = hf.Ledger(f"sqlite:///{folder}/ledger.db", folder / "home")
    ledger.create_budget("ward", hf.Budget(1.0), queries=10)
    first = hf.PrivatePredictor(trained(39, **options), ledger, TENTH)
    first.ask(QUERY, "eve")
    if "checkpoint" in options and after != 39:  # a checkpoint of other records is refused: the owner takes it away
        Path(str(options["checkpoint"])).unlink()
    again = hf.PrivatePredictor(trained(after, **options), ledger, TENTH)
    preview = again.preview(QUERY, "eve")
    answer = again.ask(QUERY, "eve")
    return [preview, answer.cost, answer.remaining, again.other_models_spent(), again.preview(QUERY, "eve")]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["", "with a checkpoint"])
def test_a_retraining_looks_the_same_whatever_happened_to_the_records(tmp_path: Path, checkpoint: bool) -> None:
    sights = []
    for after in (38, 39, 40):
        options = {"checkpoint": tmp_path / f"checkpoint {after}"} if checkpoint else {}
        sights.append(seen(tmp_path / str(after), after, **options))
    assert sights[0] == sights[1] == sights[2]


def test_every_run_has_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    one, other = trained(40), trained(40)
    assert len(one.run_id) == 32
    assert one.run_id != other.run_id
    one.save(tmp_path / "model.holdfast")
    assert hf.load(tmp_path / "model.holdfast").run_id == one.run_id


def test_the_ledger_knows_a_model_by_the_id_of_its_run(tmp_path: Path) -> None:
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("ward", hf.Budget(1.0), queries=10)
    model = trained(40)
    predictor = hf.PrivatePredictor(model, ledger, TENTH)
    predictor.ask(QUERY, "eve")
    assert ledger.entries()[-1].model == model.run_id
    model.save(tmp_path / "model.holdfast")
    loaded = hf.PrivatePredictor(hf.load(tmp_path / "model.holdfast"), ledger, TENTH)
    assert loaded.ask(QUERY, "eve").cost == 0.0
