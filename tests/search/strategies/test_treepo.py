"""TreePO's sampler: growth of the tree, shares of branches, rewinding, and early ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from reason.build import validate_settings
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from search.step_rules.fixed_length import FixedLengthSteps
from search.strategies.treepo import SPLITS, TreePo
from search.strategy import Budget, SearchResult
from search.tree import SearchTree
from tests.support.toy_search import ToyEngine, nodes_by_level, nodes_by_parent, run_search, write_five_steps


def letters(seed: int, prefix: Tokens) -> str:
    rng = random.Random(f"{seed}:{prefix}")
    return "".join(rng.choice("abcdefghijklmnop") for _ in range(400))


def grow(*, write: Any = letters, segment: int = 10, max_tokens: int = 80, **knobs: Any) -> SearchResult:
    sampling = SamplingParams(max_tokens=max_tokens)
    strategy = TreePo(**{"select": "majority", "sampling": sampling, **knobs})
    return run_search(strategy, engine=ToyEngine(write), scorer=None, step_rule=FixedLengthSteps(tokens=segment))


def test_branches_double_until_there_are_n() -> None:
    result = grow(n=16)
    assert [len(level) for level in nodes_by_level(result.tree)] == [2, 4, 8, 16, 16, 16, 16, 16]
    assert len(result.candidates) == 16


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.sampled_from(SPLITS), st.integers(0, 9))
def test_every_open_branch_goes_on_and_there_are_n_solutions(
    n: int, first: int, branching: int, split: str, salt: int
) -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return letters(seed + salt, prefix)[: 5 + (seed + salt) % 50]

    result = grow(write=write, n=n, first_width=first, branching=branching, split=split, max_repeats=None)
    below = nodes_by_parent(result.tree)
    for i, node in enumerate(result.tree.nodes):
        assert node.finish is not None or i in below or i in {c.node for c in result.candidates}
    rewound = grow(write=write, n=n, first_width=first, branching=branching, split=split, rewind=False)
    assert len(rewound.candidates) <= len(result.candidates) == n


@pytest.mark.parametrize(("split", "sign"), [("confident", 1), ("uncertain", -1)])
def test_log_probabilities_decide_where_branches_split(split: str, sign: int) -> None:
    tree = grow(n=9, first_width=3, split=split, temperature=0.01).tree
    level = nodes_by_parent(tree)[SearchTree.ROOT]
    means = [tree.nodes[node].step.mean_logprob or 0.0 for node in level]
    counts = [len(nodes_by_parent(tree)[node]) for node in level]
    assert sum(counts) == 6
    assert min(counts) >= 1
    assert counts[means.index(max(means, key=lambda mean: sign * mean))] == max(counts)


def test_missing_solutions_begin_anew_at_segments_of_ended_paths() -> None:
    ended_at_once = grow(write=lambda seed, prefix: letters(seed, prefix)[:25], n=8, branching=1)
    roots = nodes_by_parent(ended_at_once.tree)
    assert len(ended_at_once.candidates) == 8
    assert len(roots[SearchTree.ROOT]) >= 2
    assert {len(children) for children in roots.values()} != {1}
    assert len(grow(write=lambda s, p: letters(s, p)[:25], n=8, branching=1, rewind=False).candidates) == 2


def test_branches_end_with_their_answer_and_with_repetitions() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return "So \\boxed{4}. " + letters(seed, prefix) if seed % 2 else "ab" * 200

    result = grow(write=write, n=4, segment=20, max_tokens=300, max_repeats=5, stop_at_answer=True)
    texts = [result.tree.path_text(c.node) for c in result.candidates]
    assert all(len(text) == 20 for text in texts)
    assert len(texts) == 4
    assert len(grow(write=write, n=4, segment=20, max_tokens=300).tree.nodes) > 16


def test_budget_ends_the_tree_with_what_there_is() -> None:
    strategy = TreePo(n=8, select="majority", sampling=SamplingParams(max_tokens=80))
    result = run_search(
        strategy,
        engine=ToyEngine(write_five_steps),
        scorer=None,
        budget=Budget(tokens=120),
        step_rule=FixedLengthSteps(tokens=10),
    )
    assert result.stop_reason == "budget"
    assert result.usage.tokens <= 120


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"split": "best"}, "split must be one of"),
        ({"first_width": 0}, "first_width must be"),
        ({"branching": 0}, "branching must be"),
        ({"max_repeats": 1}, "max_repeats must be"),
        ({"temperature": 0}, "temperature must be"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreePo(**knobs)


def test_split_by_log_probabilities_needs_an_engine_that_gives_them() -> None:
    served = ("engine=openai", "engine.prefill=true", "search=treepo", "scorer=none")
    with pytest.raises(ConfigError, match=r"search=treepo .* set engine\.logprobs=true"):
        validate_settings(*compose_settings((*served, "search.split=uncertain")))
    validate_settings(*compose_settings(served))
