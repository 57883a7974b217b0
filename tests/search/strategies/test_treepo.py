"""TreePO's sampler: growth of the tree by levels or depth-first, shares of branches, rewinding, and early ends."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.settings.validate import validate_settings
from search.step_rules.fixed_length import FixedLengthSteps
from search.strategies.treepo import REWINDS, SPLITS, TreePo
from search.strategy import Budget, SearchResult
from search.tree import SearchTree
from tests.support.toy_search import (
    ToyEngine,
    UnsteadyEngine,
    nodes_by_level,
    nodes_by_parent,
    run_search,
    write_five_steps,
)


def letters(seed: int, prefix: Tokens) -> str:
    rng = random.Random(f"{seed}:{prefix}")
    return "".join(rng.choice("abcdefghijklmnop") for _ in range(400))


def grow(
    *,
    write: Any = letters,
    engine: ToyEngine | None = None,
    budget: Budget | None = None,
    segment: int = 10,
    max_tokens: int = 80,
    **knobs: Any,
) -> SearchResult:
    sampling = SamplingParams(max_tokens=max_tokens)
    strategy = TreePo(**{"select": "majority", "sampling": sampling, **knobs})
    return run_search(
        strategy,
        engine=engine or ToyEngine(write),
        scorer=None,
        budget=budget or Budget(),
        step_rule=FixedLengthSteps(tokens=segment),
    )


def read_solutions(result: SearchResult) -> list[str]:
    return sorted(result.tree.path_text(candidate.node) for candidate in result.candidates)


def test_branches_double_until_there_are_n() -> None:
    result = grow(n=16)
    assert [len(level) for level in nodes_by_level(result.tree)] == [2, 4, 8, 16, 16, 16, 16, 16]
    assert len(result.candidates) == 16


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(SPLITS),
    st.none() | st.integers(1, 12),
    st.sampled_from(REWINDS),
    st.integers(0, 9),
)
def test_every_open_branch_goes_on_and_there_are_n_solutions(
    n: int, first: int, branching: int, split: str, group_size: int | None, rewind_to: str, salt: int
) -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return letters(seed + salt, prefix)[: 5 + (seed + salt) % 50]

    knobs: dict[str, Any] = {
        "n": n,
        "first_width": first,
        "branching": branching,
        "split": split,
        "group_size": group_size,
    }
    result = grow(write=write, rewind_to=rewind_to, **knobs)
    below = nodes_by_parent(result.tree)
    for i, node in enumerate(result.tree.nodes):
        assert node.finish is not None or i in below or i in {c.node for c in result.candidates}
    rewound = grow(write=write, rewind=False, **knobs)
    assert len(rewound.candidates) <= len(result.candidates) == n
    for decision in (*result.selections, *rewound.selections):
        assert min(decision.widths) >= 1


def is_depth_first(tree: SearchTree) -> bool:
    """Whether all nodes below each node were written one after the other, without any from elsewhere among them."""
    below: dict[int, list[int]] = {}
    for node in range(len(tree)):
        for above in tree.path_nodes(tree.nodes[node].parent):
            below.setdefault(above, []).append(node)
    return all(nodes == list(range(nodes[0], nodes[-1] + 1)) for nodes in below.values())


@pytest.mark.parametrize("n", [2, 5, 8, 16])
@pytest.mark.parametrize("branching", [1, 2, 3])
@pytest.mark.parametrize("split", SPLITS)
def test_with_groups_of_one_a_path_goes_to_its_end_before_others_go_on(n: int, branching: int, split: str) -> None:
    knobs: dict[str, Any] = {"n": n, "branching": branching, "split": split, "rewind": False}
    assert is_depth_first(grow(group_size=1, **knobs).tree)
    assert not is_depth_first(grow(group_size=None, **knobs).tree)


@pytest.mark.parametrize("group_size", [1, 2, 4, 8])
def test_groups_write_the_solutions_of_the_tree_that_grows_by_levels(group_size: int) -> None:
    """Where no branch ends early all have the same shares in both orders, and so the same seeds."""
    by_levels, in_groups = grow(n=16), grow(n=16, group_size=group_size)
    assert read_solutions(in_groups) == read_solutions(by_levels)
    assert in_groups.usage == replace(by_levels.usage, seconds=in_groups.usage.seconds)
    assert in_groups.tree.to_dict() != by_levels.tree.to_dict()


def test_one_group_of_all_solutions_is_the_tree_that_grows_by_levels() -> None:
    assert grow(n=16, group_size=16).tree.to_dict() == grow(n=16).tree.to_dict()


@pytest.mark.parametrize(("n", "group_size", "most"), [(32, 1, 2), (32, 4, 4), (32, 8, 8), (24, 4, 3), (24, 3, 3)])
def test_no_more_branches_are_written_at_a_time_than_a_group_has_solutions(n: int, group_size: int, most: int) -> None:
    """A branch of a larger share parts into two, so they may be fewer."""
    result = grow(n=n, first_width=2, group_size=group_size)
    assert max(sum(decision.widths) for decision in result.selections) == most


def count_finished(result: SearchResult) -> int:
    return sum(result.tree.nodes[c.node].num_path_tokens == 80 for c in result.candidates)


@pytest.mark.parametrize("tokens", [200, 400, 700])
def test_budget_that_ends_early_leaves_whole_solutions_in_groups_alone(tokens: int) -> None:
    budget = Budget(tokens=tokens)
    by_levels, in_groups = grow(n=32, budget=budget), grow(n=32, group_size=1, budget=budget)
    assert count_finished(by_levels) == 0 < count_finished(in_groups)
    assert in_groups.stop_reason == "budget"
    assert in_groups.usage.tokens <= tokens
    assert len(in_groups.candidates) <= count_finished(in_groups) + 2  # those that wait are no solutions


def answer_mostly_one(seed: int, prefix: Tokens) -> str:
    """Answers after 70 tokens, 1 in three of four cases."""
    written = len(prefix) - len(b"Question: toy?\n")
    answer = 1 if random.Random(f"{seed}:{prefix}").random() < 0.75 else 2
    return "x" * (70 - written) + f"\\boxed{{{answer}}}" if written <= 70 else ""


@pytest.mark.parametrize("early_stop", [1, 0.5])
def test_decided_vote_ends_a_search_in_groups_before_the_other_paths_are_written(early_stop: float) -> None:
    whole = grow(write=answer_mostly_one, n=32)
    by_levels = grow(write=answer_mostly_one, n=32, early_stop=early_stop)
    in_groups = [grow(write=answer_mostly_one, n=32, early_stop=early_stop, group_size=size) for size in (1, 4)]
    answers = [r.tree.path_text(r.best) for r in (whole, by_levels, *in_groups) if r.best is not None]
    assert [answer[70:79] for answer in answers] == ["\\boxed{1}"] * 4
    for result in in_groups:
        assert result.stop_reason == "decided"
        assert result.usage.tokens < 0.8 * by_levels.usage.tokens
        assert len(result.candidates) < 32


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 999),
    st.none() | st.integers(1, 5),
    st.sampled_from([None, 1, 0.5]),
    st.none() | st.integers(50, 900),
)
def test_tree_is_the_same_in_whatever_order_requests_end(
    seed: int, group_size: int | None, early_stop: float | None, tokens: int | None
) -> None:
    knobs: dict[str, Any] = {
        "n": 12,
        "early_stop": early_stop,
        "group_size": group_size,
        "budget": Budget(tokens=tokens),
    }
    steady = grow(write=answer_mostly_one, **knobs)
    unsteady = grow(engine=UnsteadyEngine(seed, answer_mostly_one), **knobs)
    assert steady.tree.to_dict() == unsteady.tree.to_dict()
    assert (steady.votes, steady.best, steady.stop_reason) == (unsteady.votes, unsteady.best, unsteady.stop_reason)


class SometimesUnsure(ToyEngine):
    """The model is unsure at every z, and less so at y."""

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        generation = super().continue_prefix(request)
        unsure = {ord("z"): -3.0, ord("y"): -2.0}
        return replace(generation, logprobs=tuple(unsure.get(token, -0.5) for token in generation.tokens))


@pytest.mark.parametrize("group_size", [None, 1])
def test_missing_solutions_begin_anew_at_the_segment_with_the_least_likely_token(group_size: int | None) -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return "ayaaaaaaaaaaaaaaaaaaaaaazaaaaaayaaaaaaaa"[len(prefix) - len(b"Question: toy?\n") :]

    result = grow(
        engine=SometimesUnsure(write), n=6, first_width=1, branching=1, group_size=group_size, rewind_to="least_likely"
    )
    assert len(result.candidates) == 6
    below = nodes_by_parent(result.tree)
    parted = [node for node, children in below.items() if len(children) > 1]
    assert [result.tree.path_text(node) for node in parted] == ["ayaaaaaaaaaaaaaaaaaa"]
    assert len(below[parted[0]]) == 6
    at_random = grow(engine=SometimesUnsure(write), n=6, first_width=1, branching=1, group_size=group_size)
    assert len({node for node, children in nodes_by_parent(at_random.tree).items() if len(children) > 1}) > 1


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


@pytest.mark.parametrize("group_size", [None, 1, 3])
@pytest.mark.parametrize("n", [3, 8])
def test_branch_that_has_ended_passes_its_share_on(n: int, group_size: int | None) -> None:
    begun: list[int] = []

    def write(seed: int, prefix: Tokens) -> str:
        begun.append(seed)
        return "short" if seed == begun[0] else letters(seed, prefix)

    result = grow(write=write, n=n, group_size=group_size, rewind=False)
    assert [len(text) for text in read_solutions(result)].count(80) == n - 1
    assert len(result.candidates) == n


def test_path_that_begins_anew_goes_to_its_end_before_the_next_one_begins() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return letters(seed, prefix)[: 65 - len(prefix)]  # five segments

    result = grow(write=write, n=8, first_width=1, branching=1, group_size=1)
    ends = sorted(candidate.node for candidate in result.candidates)
    assert len(ends) == 8
    for before, end in zip([-1, *ends], ends, strict=False):
        assert result.tree.path_nodes(end)[-(end - before) :] == list(range(before + 1, end + 1))


@pytest.mark.parametrize("group_size", [None, 1])
def test_every_open_branch_goes_on_where_merged_ones_have_more_solutions_than_n(group_size: int | None) -> None:
    def write(seed: int, prefix: Tokens) -> str:
        rng = random.Random(f"{seed}:{prefix}")
        return "".join(rng.choice("12") for _ in range(rng.randrange(5, 60)))

    result = grow(write=write, n=12, first_width=4, group_size=group_size, merge=True, merge_extra=1.0)
    assert len(result.candidates) >= 12
    assert all(min(decision.widths) >= 1 for decision in result.selections if "merged" not in decision.note)


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
        ({"group_size": 0}, "group_size must be"),
        ({"rewind_to": "worst"}, "rewind_to must be one of"),
        ({"first_width": 0}, "first_width must be"),
        ({"branching": 0}, "branching must be"),
        ({"max_repeats": 1}, "max_repeats must be"),
        ({"temperature": 0}, "temperature must be"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreePo(**knobs)


@pytest.mark.parametrize("setting", ["search.split=uncertain", "search.rewind_to=least_likely"])
def test_log_probabilities_need_an_engine_that_gives_them(setting: str) -> None:
    served = ("engine=openai", "engine.prefill=true", "search=treepo", "scorer=none")
    with pytest.raises(ConfigError, match=r"search=treepo .* set engine\.logprobs=true"):
        validate_settings(*compose_settings((*served, setting)))
    validate_settings(*compose_settings(served))
