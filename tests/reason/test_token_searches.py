"""Searches that read likely tokens and entropies, with the bundled models: speculation changes nothing they do."""

from __future__ import annotations

import pytest

import reason
from search.tree import SavedTree

QUESTIONS = ("What is the remainder when 7^5 is divided by 11?", "x0 = 3. Then x(k+1) = 2*x(k) + 1. Find x3.")
SEARCHES = {"cntp": ["scorer=none", "search.n=3"], "pg_td": ["scorer=prm", "search.n=6"], "dpts": ["search.n=4"]}


def list_texts(tree: SavedTree) -> list[tuple[int, list[int]]]:
    return [(node["parent"], node["tokens"]) for node in tree["nodes"]]


@pytest.mark.parametrize("name", SEARCHES)
def test_tree_is_the_same_with_and_without_speculation(name: str) -> None:
    trees = []
    for speculation in ("off", "stand"):
        with reason.load(f"search={name}", *SEARCHES[name], f"speculation={speculation}") as solver:
            solutions = [solver.solve(question) for question in QUESTIONS]
            trees.append([list_texts(solution.result.tree.to_dict()) for solution in solutions])
            assert all(solution.answer is not None for solution in solutions)
            solver.assert_invariants()
    assert trees[0] == trees[1]
