"""Trees in which a search begins prompts of its own: paths, prefixes, KV, files, and copies for other programs."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens, Usage
from search.expand import Expander
from search.kv import measure_kv
from search.strategy import SearchResult
from search.tree import Context, SearchTree, Step
from search.tree_export import shape_statistics, to_dot, write_graphml
from tests.support.toy_search import ROOT, ToyEngine, toy_resources

PROMPT = tuple(range(10))


def small_tree() -> SearchTree:
    """A draft of two steps, notes put in behind it, and a solution from a prompt that shares four ids with the first
    one."""
    tree = SearchTree(PROMPT)
    first = tree.add_node(tree.ROOT, Step((11, 12), "a"))
    draft = tree.add_node(first, Step((13,), "b"), finish="length")
    put_in = tree.add_context(Context((21, 22), "Notes?", "notes", (draft,), after=draft))
    notes = tree.add_node(put_in, Step((23,), "n"), finish="eos")
    again = tree.add_context(Context((*PROMPT[:4], 31), "Again", sources=(notes,)))
    tree.add_node(again, Step((32, 33), "c"), finish="eos")
    return tree


def random_tree(seed: int) -> SearchTree:
    """A tree of up to 30 nodes with contexts of both kinds; every id below the prompts is its own."""
    dice, ids = random.Random(seed), iter(range(100, 100_000))
    tree = SearchTree(PROMPT)

    def draw_ids(least: int) -> Tokens:
        return tuple(next(ids) for _ in range(dice.randrange(least, 5)))

    for _ in range(dice.randrange(31)):
        starts = [tree.ROOT, *(number for number, _ in tree.numbered_contexts())]
        kind = dice.random()
        if len(tree) and kind < 0.3:
            sources = tuple(dice.sample(range(len(tree)), dice.randrange(1, min(4, len(tree) + 1))))
            if dice.random() < 0.5:
                tree.add_context(Context(draw_ids(1), "in", "notes", sources, after=sources[0]))
            else:
                tree.add_context(Context(PROMPT[: dice.randrange(11)] + draw_ids(1), "new", sources=sources))
        else:
            tree.add_node(dice.choice([*starts, *range(len(tree))]), Step(draw_ids(1), f"{len(tree)} "))
    return tree


def test_path_begins_behind_its_context() -> None:
    tree = small_tree()
    tree.assert_invariants()
    assert [tree.path_text(node) for node in range(4)] == ["a", "ab", "n", "c"]
    assert [tree.path_nodes(node) for node in (2, 3, -1, -2, -3)] == [[2], [3], [], [], []]
    assert tree.prefix_tokens(2) == (*PROMPT, 11, 12, 13, 21, 22, 23)
    assert tree.prefix_tokens(3) == (*PROMPT[:4], 31, 32, 33)
    assert [node.num_path_tokens for node in tree.nodes] == [2, 3, 1, 2]
    assert [node.depth for node in tree.nodes] == [1, 2, 3, 4]
    assert [tree.find_context(node) for node in (1, 2, -3)] == [None, *tree.contexts]


def test_unknown_parent_or_source_is_refused() -> None:
    tree = small_tree()
    with pytest.raises(IndexError, match="parent -4 is not in a tree of 4 nodes"):
        tree.add_node(-4, Step((1,), "x"))
    for wrong in (Context((1,), "x", sources=(4,)), Context((1,), "x", sources=(-1,)), Context((1,), "x", after=9)):
        with pytest.raises(IndexError, match="is not in a tree of 4 nodes"):
            tree.add_context(wrong)


@given(st.integers(0, 10**6))
def test_prefixes_kv_and_files_agree_in_every_tree(seed: int) -> None:
    tree = random_tree(seed)
    tree.assert_invariants()
    everything = [*range(len(tree)), *(number for number, _ in tree.numbered_contexts())]
    for node in everything:
        assert tree.count_prefix_tokens(node) == len(tree.prefix_tokens(node))
    frontier = [node for node in everything if node % 3 == seed % 3] or [tree.ROOT]
    distinct = {
        prefix[:end] for node in frontier for prefix in [tree.prefix_tokens(node)] for end in range(1, len(prefix) + 1)
    }
    assert tree.unique_tokens(frontier) == len(distinct)
    read = SearchTree.from_dict(json.loads(json.dumps(tree.to_dict())))
    assert (read.nodes, read.contexts, read.root) == (tree.nodes, tree.contexts, tree.root)
    assert len(to_dot(tree).splitlines()) == 3 + 2 * len(tree) + 1 + sum(1 + len(c.sources) for c in tree.contexts)
    shape = shape_statistics(tree)
    assert sum(shape.width_by_depth) == len(tree)


def test_tree_without_contexts_is_saved_as_before() -> None:
    tree = SearchTree((1,))
    tree.add_node(tree.ROOT, Step((2,), "x"))
    assert tree.to_dict().keys() == {"root", "nodes"}


def test_saved_tree_with_an_unknown_context_is_refused() -> None:
    saved = small_tree().to_dict()
    del saved["contexts"]
    with pytest.raises(IndexError, match="parent -2"):
        SearchTree.from_dict(saved)


def test_kv_counts_each_prompt_once() -> None:
    tree = small_tree()
    other = tree.add_node(-3, Step((34,), "d"))
    tree.add_node(other, Step((35,), "e"), finish="eos")
    use = measure_kv(SearchResult(tree, 3, Usage()))
    # at depth 1 the first step behind the prompt of ten, at depth 4 one step behind the prompt of five
    assert (use.steps, use.peak_tokens, use.kept_tokens) == (2, 10 + 2, (10 + 2 + 5 + 1) / 2)


def test_graphs_have_the_contexts_as_nodes(tmp_path: Path) -> None:
    tree = small_tree()
    write_graphml(tree, tmp_path / "tree.graphml")
    graph = nx.read_graphml(tmp_path / "tree.graphml", node_type=int)
    assert graph.nodes[-2] == {"text": "Notes?", "num_tokens": 2, "depth": 2, "purpose": "notes"}
    assert set(graph.edges) == {(-1, 0), (0, 1), (1, -2), (-2, 2), (2, -3), (-3, 3)}
    dot = to_dot(tree, chosen=3)
    for line in ('c1 [label="notes: Notes?\\n2 tokens"];', "c2 -> n3 [style=bold];", "n1 -> c1 [style=dashed];"):
        assert f"  {line}\n" in dot


def test_contexts_with_equal_prompts_have_seeds_of_their_own_and_one_place_in_the_cache() -> None:
    engine = ToyEngine()
    run = Expander(ROOT, toy_resources(engine=engine))
    params = SamplingParams(max_tokens=100)

    async def expand() -> None:
        drafts = await run.sample_continuations([run.tree.ROOT] * 2, params, one_step=False)
        contexts = [run.add_context(Context((1, 2, 3), "x", sources=(draft,))) for draft in drafts]
        contexts.append(run.add_context(Context((1, 2, 3), "x", sources=(drafts[0],))))
        await run.sample_continuations(contexts, params, one_step=False)

    asyncio.run(expand())
    requests = engine.requests[2:]
    assert [request.prefix for request in requests] == [(1, 2, 3)] * 3
    assert len({request.seed for request in requests}) == 3
    assert run.tree.count_prompt_tokens([-2, -3, -4]) == 3


@pytest.mark.parametrize("window", [None, 60])
def test_paused_solution_stays_open_unless_another_limit_cut_it(window: int | None) -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return "x" * 200

    run = Expander(ROOT, toy_resources(engine=ToyEngine(write), context_window=window))

    async def expand() -> list[int]:
        nodes = [run.tree.ROOT]
        for _ in range(3):
            more = await run.sample_continuations(
                nodes[-1:], SamplingParams(max_tokens=20), one_step=False, pauses=True
            )
            nodes += more
            if run.tree.nodes[more[0]].finish is not None:
                break
        return nodes[1:]

    nodes = asyncio.run(expand())
    ends = [run.tree.nodes[node].finish for node in nodes]
    assert ends == ([None, None, None] if window is None else [None, None, "length"])
    assert all(one == run.tree.nodes[other].parent for one, other in pairwise(nodes))
    assert run.tree.count_prefix_tokens(nodes[-1]) == (len(ROOT) + 60 if window is None else window)
