"""KV is counted once per shared token, before and after pruning."""

from __future__ import annotations

from decoding.core import Usage
from search.kv import decisions_by_depth, measure_kv
from search.open_paths import OpenPaths
from search.selection import record_selection
from search.strategy import SearchResult
from search.tree import SearchTree, Step


def small_tree() -> SearchTree:
    """Two first steps of 2 and 3 tokens; two children of 4 each below the first; all open but the last."""
    tree = SearchTree((1,) * 10)
    a = tree.add_node(tree.ROOT, Step((1, 2), "a"))
    tree.add_node(tree.ROOT, Step((1, 2, 3), "b"))
    tree.add_node(a, Step((1, 2, 3, 4), "c"))
    tree.add_node(a, Step((1, 2, 3, 4), "d"), finish="eos")
    return tree


def test_selection_counts_shared_tokens_once_and_the_tokens_kept() -> None:
    decision = record_selection(small_tree(), [1, 2], [0, 3])
    assert (decision.kv_tokens, decision.kv_nodes) == (2 + 3 + 4, 3)
    assert (decision.kept_tokens, decision.kept_nodes) == (2 + 4, 2)
    assert decision.reasons == {1: "score"}


def test_selection_counts_other_open_branches_too() -> None:
    tree = small_tree()
    others = OpenPaths(tree)
    others.add(2)
    decision = record_selection(tree, [1], [1], still_open=others)
    assert decision.kv_tokens == decision.kept_tokens == 9


def test_kv_usage_has_means_and_peak_over_selections() -> None:
    tree = small_tree()
    decisions = (record_selection(tree, [0, 1], [2, 0]), record_selection(tree, [2], [1]))
    use = measure_kv(SearchResult(tree, 3, Usage(), selections=decisions))
    assert (use.steps, use.frontier_tokens, use.frontier_nodes) == (2, (5 + 6) / 2, 2.0)
    assert (use.kept_tokens, use.peak_tokens) == (10 + (2 + 6) / 2, 16)


def test_sampled_solutions_pin_every_open_branch_of_a_depth() -> None:
    tree = small_tree()
    assert [(d.nodes, d.kv_tokens) for d in decisions_by_depth(tree)] == [((0,), 2)]
    assert measure_kv(SearchResult(tree, None, Usage())).peak_tokens == 12
    assert measure_kv(SearchResult(SearchTree((1,)), None, Usage())).steps == 0
