"""The extra `full` is optional: without it a run decodes plainly, and what needs Numba or SciPy is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, NoReturn

import pytest

import reason
from reason.commands import main
from reason.config import compose
from reason.config.compose import list_options
from tests.support.paths import ROOT

QUESTIONS = [
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "x0 = 4. Each next term is 2 times the one before plus 1, modulo 11. Find x2.",
]
INSTALL = "pip install 'reason-search[full]'"
SCIPY_NEEDED = [["search=ets"], ["search=beam_search", "search.merge=true"], ["+experiment=paper_rebase"]]
SETTINGS = ["search.n=3", "scorer=prm"]
PROGRAM = f"""
import json, sys
sys.modules.update(numba=None, llvmlite=None, scipy=None)  # neither found nor imported
import reason
refused = {{}}
for overrides in json.loads(sys.argv[1]):
    try:
        reason.load(*overrides)
    except ValueError as error:
        refused[" ".join(overrides)] = [str(error), "torch" in sys.modules]
with reason.load(*{SETTINGS}) as solver:
    trees = [solver.solve(question).tree for question in {QUESTIONS}]
    texts = [tree.path_text(leaf) for tree in trees for leaf in tree.leaf_nodes()]
    print(json.dumps({{"refused": refused, "texts": texts, "decoder": solver.engine.stats.decoder}}))
"""


def texts_here(*overrides: str) -> list[str]:
    with reason.load(*SETTINGS, *overrides) as solver:
        trees = [solver.solve(question).tree for question in QUESTIONS]
        return [tree.path_text(leaf) for tree in trees for leaf in tree.leaf_nodes()]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """What a process gives without the extra `full`; `said` is what it logs."""
    refusals = [["speculation=off", "engine.decoder=compiled"], *SCIPY_NEEDED]
    refusals += [[f"speculation={name}"] for name in list_options("speculation") if name != "off"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(refusals)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer | {"said": done.stderr}


def test_the_default_run_drafts_nothing_and_has_the_texts_of_the_eager_decoder(result: dict[str, Any]) -> None:
    assert result["decoder"] == "eager"
    assert result["texts"] == texts_here("engine.decoder=eager", "speculation=off")


def test_it_is_said_once_what_is_slower_and_how_to_install_it(result: dict[str, Any]) -> None:
    (line,) = (line for line in result["said"].splitlines() if "Numba" in line)
    assert "slower" in line
    assert INSTALL in line


def test_what_needs_numba_is_refused_with_the_setting_and_the_choices(result: dict[str, Any]) -> None:
    message, imported_torch = result["refused"]["speculation=off engine.decoder=compiled"]
    assert message.startswith("engine.decoder=compiled")
    assert "decoder=auto or decoder=eager" in message
    assert not imported_torch
    for name in set(list_options("speculation")) - {"off"}:
        message, _ = result["refused"][f"speculation={name}"]
        assert "set speculation=off" in message
        assert INSTALL in message


def test_what_needs_scipy_is_refused_before_a_model_loads(result: dict[str, Any]) -> None:
    for overrides in SCIPY_NEEDED:
        message, imported_torch = result["refused"][" ".join(overrides)]
        assert "needs scipy" in message
        assert INSTALL in message
        assert not imported_torch


def test_a_command_that_needs_the_extra_ends_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_missing(module: str) -> NoReturn:
        raise ModuleNotFoundError(f"No module named {module!r}", name=missing)

    monkeypatch.setattr(sys, "argv", ["reason"])
    monkeypatch.setattr(main, "import_module", import_missing)
    missing = "scipy.stats"
    assert main.run_module("reason.commands.train_router", []) == main.FAILED
    assert capsys.readouterr().err == f"reason: scipy is not installed: {INSTALL}\n"
    missing = "another"
    with pytest.raises(ModuleNotFoundError):
        main.run_module("reason.commands.train_router", [])


def test_what_was_typed_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "explain_absent_numba", lambda: "it is absent")
    for overrides, expected in (
        ([], "off"),
        (["search.n=2", "effort=low"], "off"),
        (["speculation=stand"], "stand"),
        (["speculation.width=2"], "stand"),
        (["speculation=suffix"], "suffix"),
        (["engine=sglang", "engine.urls=[http://localhost:1]"], "off"),
    ):
        assert compose.compose_settings(overrides)[1]["speculation"] == expected
