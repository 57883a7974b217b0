"""The README's table of searches has the figures of the report that it names."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from tests.support.paths import ROOT, SCRIPTS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS / "dev"))
    return importlib.import_module("readme_table")


def test_readme_has_the_figures_of_its_report(script: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.TABLE.search(text), "the README has lost its marked table"
    assert script.fill_table(text) == text
    for search in ("rebase", "best_of_n"):
        line = next(line for line in text.splitlines() if line.startswith(f"| `{search}`"))
        tokens, accuracy = line.removesuffix(" |").split(" | ")[-2:]
        edited = text.replace(line, line.replace(tokens, "9").replace(accuracy, ".9"))
        assert edited != text
        assert script.fill_table(edited) == text


def test_vote_has_the_figures_of_the_samples_of_the_baseline(script: ModuleType) -> None:
    point = {"samples": 16, "tokens": 1500.4, "accuracy": 0.2501}
    report = {"runs": [], "baselines": {"majority vote": [point | {"samples": 8, "accuracy": 0.1}, point]}}
    assert script.read_figures(report, 16) == {"self_consistency": (1500.4, 0.2501)}
    assert script.read_figures(report, 4) == {}
