"""Numba is optional for plain decoding; what needs it is refused by name before a model loads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import reason
from reason.config.compose import list_options
from tests.support.hidden_packages import hide_packages
from tests.support.paths import ROOT

QUESTIONS = [
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "x0 = 4. Each next term is 2 times the one before plus 1, modulo 11. Find x2.",
]
SETTINGS = ["speculation=off", "search.n=3", "scorer=prm"]
PROGRAM = f"""
import json, sys
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
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process gives in which Numba cannot be imported; `said` is what it logs."""
    environment = hide_packages(tmp_path_factory.mktemp("packages"), "numba", "llvmlite")
    refusals = [["speculation=off", "engine.decoder=compiled"]]
    refusals += [[f"speculation={name}"] for name in list_options("speculation") if name != "off"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(refusals)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer | {"said": done.stderr}


def test_texts_are_those_of_the_eager_decoder(result: dict[str, Any]) -> None:
    assert result["decoder"] == "eager"
    assert result["texts"] == texts_here("engine.decoder=eager")


def test_it_is_said_once_what_is_slower_and_how_to_install_it(result: dict[str, Any]) -> None:
    (line,) = (line for line in result["said"].splitlines() if "Numba" in line)
    assert "slower" in line
    assert "pip install 'numba" in line


def test_what_needs_numba_is_refused_with_the_setting_and_the_choices(result: dict[str, Any]) -> None:
    refused = dict(result["refused"])
    message, imported_torch = refused.pop("speculation=off engine.decoder=compiled")
    assert message.startswith("engine.decoder=compiled")
    assert "decoder=auto or decoder=eager" in message
    assert not imported_torch
    assert set(refused) == {f"speculation={name}" for name in list_options("speculation") if name != "off"}
    for message, _ in refused.values():
        assert "set speculation=off" in message
        assert "pip install 'numba" in message
