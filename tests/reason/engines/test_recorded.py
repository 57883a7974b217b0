"""Saved solutions are scored and voted on again: they come back as they were written, and nothing is generated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reason
from reason.config.compose import compose_settings
from reason.runs.resume import save_settings
from reason.runs.run import tree_record

QUESTIONS = [
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "x0 = 4. Each next term is 2 times the one before plus 1, modulo 11. Find x2.",
]


def solve(*overrides: str) -> list[reason.Solution]:
    with reason.load(*overrides) as solver:
        return [solver.solve(question) for question in QUESTIONS]


def list_texts(solution: reason.Solution) -> list[str]:
    tree = solution.result.tree
    return [tree.path_text(leaf) for leaf in tree.leaf_nodes()]


@pytest.fixture(scope="module")
def written() -> list[reason.Solution]:
    return solve("search.n=6")


@pytest.fixture(scope="module")
def run(written: list[reason.Solution], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "trees").mkdir()
    for i, solution in enumerate(written):
        (folder / "trees" / f"{i}.json").write_text(json.dumps(tree_record(solution)))
    return folder


def test_the_same_scorer_gives_the_same_solutions_scores_and_answers(run: Path, written: list[reason.Solution]) -> None:
    again = solve("engine=recorded", f"engine.run={run}", "search.n=6")
    assert [list_texts(solution) for solution in again] == [list_texts(solution) for solution in written]
    for new, old in zip(again, written, strict=True):
        assert new.answer == old.answer
        assert new.votes == pytest.approx(old.votes)
        assert (new.usage.tokens, new.usage.calls, new.usage.forwards) == (old.usage.tokens, 6, 0)


def test_another_scorer_and_vote_see_the_first_solutions(run: Path, written: list[reason.Solution]) -> None:
    settings = ["search=self_consistency", "search.n=4", "scorer=confidence", "search.select=weighted"]
    refused = pytest.raises(reason.ConfigError, match="reads the log-probabilities of the most likely tokens")
    with refused:
        solve("engine=recorded", f"engine.run={run}", *settings)
    settings[2] = "scorer=likelihood"
    again = solve("engine=recorded", f"engine.run={run}", *settings)
    assert [list_texts(solution) for solution in again] == [list_texts(solution)[:4] for solution in written]
    assert all(sum(solution.votes.values()) > 0 for solution in again)


def test_more_solutions_than_there_are_and_other_questions_are_refused_by_name(run: Path) -> None:
    with reason.load("engine=recorded", f"engine.run={run}", "search.n=7") as solver:
        with pytest.raises(ValueError, match=r"has 6 solutions of this question; set a lower search\.n"):
            solver.solve(QUESTIONS[0])
        with pytest.raises(ValueError, match="no solution of this question; give the task, model and prompt"):
            solver.solve("1 + 1?")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["search=beam_search"], "search=beam_search continues earlier output"),
        (["scorer=judge"], r"scorer\.model=small"),
        (["speculation=stand"], "speculation"),
        (["engine.run=/nowhere"], r"engine\.run must be the folder of a run, and .*holds no trees"),
        (["engine.run=''"], r"engine\.run must be the folder of a run, got ''"),
    ],
)
def test_what_saved_solutions_cannot_give_is_refused(run: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(reason.ConfigError, match=message):
        reason.load("engine=recorded", f"engine.run={run}", *overrides)


def test_a_broken_tree_is_named(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "one.json").write_text('{"root": [1], "nodes": [{"parent": 5}]}')
    with pytest.raises(reason.ConfigError, match=r"one\.json is no tree of a run"):
        reason.load("engine=recorded", f"engine.run={tmp_path}")


def test_solutions_drawn_with_other_settings_are_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    config, choices = compose_settings(["search.n=6"])
    save_settings(folder, config=config, choices=choices, about={}, command="")
    engine = ["engine=recorded", f"engine.run={folder}", "search.n=6"]
    reason.load(*engine).close()
    with pytest.raises(reason.ConfigError, match=r"search\.sampling\.temperature=.*; give that, not 0\.5"):
        reason.load(*engine, "search.sampling.temperature=0.5")
