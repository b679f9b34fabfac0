"""Every exported name is documented in one form, and its example runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import holdfast as hf

PUBLIC_MODULES = ("accounting", "mechanisms", "preprocessing")
EXPORTED = {name: getattr(hf, name) for name in hf.__all__ if name != "__version__"} | {
    f"{module}.{name}": getattr(getattr(hf, module), name)
    for module in PUBLIC_MODULES
    for name in getattr(hf, module).__all__
}
# Contracts to derive from, aliases and constants: there is nothing to construct.
WITHOUT_EXAMPLE = {
    "accounting.Guarantee",
    "mechanisms.AnswerMechanism",
    "mechanisms.Mechanism",
    "mechanisms.SparseVectorSession",
    "mechanisms.UNSTABLE",
    "preprocessing.read_csv_bytes",
    "preprocessing.read_labels",
    "preprocessing.read_records",
}


def _parameters(value: object) -> list[str]:
    """Return the arguments that a caller gives, without those that an error class takes."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return []
    target = value.__init__ if inspect.isclass(value) else value
    return [name for name in inspect.signature(target).parameters if name != "self"]


@pytest.mark.parametrize(
    "name", sorted(set(EXPORTED) - {"mechanisms.UNSTABLE", "accounting.Guarantee"})
)
def test_every_argument_of_an_exported_name_is_documented(name: str) -> None:
    value = EXPORTED[name]
    text = inspect.getdoc(value)
    assert text is not None
    first = text.partition("\n")[0]
    assert first.endswith("."), f"the first line is no sentence: {first!r}"
    if name in ("Neighbours", "mechanisms.AnswerMechanism", "mechanisms.Mechanism"):
        return
    for parameter in _parameters(value):
        assert f"{parameter}: " in text, f"{name}: {parameter} is not documented"


@pytest.mark.parametrize("name", sorted(set(EXPORTED) - WITHOUT_EXAMPLE))
def test_the_example_of_an_exported_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = EXPORTED[name]
    if inspect.isclass(value) and issubclass(value, BaseException):
        return
    tests = doctest.DocTestFinder().find(value, name, globs={})
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
