"""The fuzz of equality runs, draws the same case twice, and names what differs between two searches."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from reason.problem import Problem, Solution
from search.strategies.best_of_n import BestOfN
from search.tree import SearchTree
from tests.support.paths import SCRIPTS
from tests.support.toy_search import run_search


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS / "dev"))
    return importlib.import_module("fuzz_equality")


@pytest.fixture
def solution() -> Solution:
    result = run_search(BestOfN(n=4))
    return Solution(problem=Problem.from_question("toy?"), answer="1", text="", score=result.score, result=result)


def with_tree(solution: Solution, tree: SearchTree) -> Solution:
    return replace(solution, result=replace(solution.result, tree=tree))


def test_fuzz_finds_no_difference_in_three_cases() -> None:
    command = [sys.executable, str(SCRIPTS / "dev" / "fuzz_equality.py"), "--cases", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "3 cases of seed 0 in float32, 12 searches compared: 0 cases differ" in done.stdout


def test_case_is_drawn_from_its_seed_and_number(fuzz: ModuleType) -> None:
    draws = [fuzz.draw_settings(seed, number, "float32") for seed, number in ((0, 9), (0, 9), (0, 10), (1, 9))]
    assert draws[0] == draws[1]
    assert draws[0].models == draws[2].models
    assert len({draw.search for draw in draws}) == 3


def test_equal_searches_have_no_difference(fuzz: ModuleType, solution: Solution) -> None:
    copy = with_tree(solution, SearchTree.from_dict(solution.tree.to_dict()))
    comparison = fuzz.compare_solutions(solution, copy)
    assert comparison.differences == []
    assert comparison.num_scores > 0
    assert comparison.num_unequal_scores == 0


@pytest.mark.parametrize(("change", "differs"), [(1e-9, []), (1e-3, ["scores"])])
def test_changed_score_is_a_difference_beyond_the_tolerance(
    fuzz: ModuleType, solution: Solution, change: float, differs: list[str]
) -> None:
    saved = solution.tree.to_dict()
    saved["nodes"][0]["score"] = (solution.tree.nodes[0].score or 0.0) * (1 + change)
    comparison = fuzz.compare_solutions(solution, with_tree(solution, SearchTree.from_dict(saved)))
    assert comparison.differences == differs
    assert comparison.num_unequal_scores == 1


def test_changed_token_and_another_choice_are_differences(fuzz: ModuleType, solution: Solution) -> None:
    saved = solution.tree.to_dict()
    saved["nodes"][0]["tokens"][0] += 1
    assert fuzz.compare_solutions(solution, with_tree(solution, SearchTree.from_dict(saved))).differences == ["tokens"]
    other = replace(solution, result=replace(solution.result, best=None))
    assert fuzz.compare_solutions(solution, other).differences == ["answer"]
