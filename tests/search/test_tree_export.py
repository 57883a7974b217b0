"""GraphML, DOT and shape statistics of search trees, through networkx and by hand."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import pytest

from search.strategies.rebase import Rebase
from search.tree import SearchTree, Step
from search.tree_export import shape_statistics, to_dot, write_graphml
from tests.support.toy_search import run_search

STATEMENT = re.compile(r'  (n_root|n\d+)( -> (n\d+))?( \[(label="((?:[^"\\\n]|\\.)*)")?(, )?(style=bold)?\])?;')


@pytest.fixture
def searched_tree() -> SearchTree:
    return run_search(Rebase(n=8)).tree


def awkward_tree() -> SearchTree:
    """Two branches with texts that need escapes, scores of some nodes only, and one step of a routed search."""
    tree = SearchTree((1, 2, 3))
    first = tree.add_node(tree.ROOT, Step((4, 5), 'say "x\\y" & <b>\n'), score=0.25)
    tree.add_node(first, Step((6,), "nul \x00 and bell \x07"), finish="eos")
    tree.add_node(first, Step((7, 8, 9), "ünï → 𝒳", model="target", routing_score=0.5), score=0.0, finish="length")
    return tree


class TestWriteGraphml:
    def test_networkx_reads_equal_structure_and_attributes(self, searched_tree: SearchTree, tmp_path: Path) -> None:
        write_graphml(searched_tree, tmp_path / "tree.graphml")
        graph = nx.read_graphml(tmp_path / "tree.graphml", node_type=int)
        written = searched_tree.to_networkx()
        assert set(graph.edges) == set(written.edges)
        assert dict(graph.nodes(data=True)) == dict(written.nodes(data=True))

    def test_missing_values_are_left_out_and_characters_that_xml_cannot_hold_replaced(self, tmp_path: Path) -> None:
        write_graphml(awkward_tree(), tmp_path / "tree.graphml")
        nodes = nx.read_graphml(tmp_path / "tree.graphml", node_type=int).nodes
        assert nodes[0] == {"text": 'say "x\\y" & <b>\n', "num_tokens": 2, "depth": 1, "score": 0.25}
        assert nodes[1] == {"text": "nul \ufffd and bell \ufffd", "num_tokens": 1, "depth": 2, "finish": "eos"}
        assert (nodes[2]["model"], nodes[2]["routing_score"], nodes[2]["score"]) == ("target", 0.5, 0.0)

    def test_tree_without_steps_is_its_prompt(self, tmp_path: Path) -> None:
        write_graphml(SearchTree((1, 2)), tmp_path / "tree.graphml")
        graph = nx.read_graphml(tmp_path / "tree.graphml", node_type=int)
        assert dict(graph.nodes(data=True)) == {-1: {"text": "", "num_tokens": 2, "depth": 0}}


class TestToDot:
    @pytest.mark.parametrize("tree", [awkward_tree(), run_search(Rebase(n=8)).tree], ids=["awkward", "searched"])
    def test_every_line_is_a_node_or_an_edge_of_the_tree(self, tree: SearchTree) -> None:
        first, second, *statements, last = to_dot(tree).splitlines()
        assert (first, second, last) == ("digraph search_tree {", "  node [shape=box];", "}")
        nodes, edges = set(), set()
        for statement in statements:
            match = STATEMENT.fullmatch(statement)
            assert match, statement
            if match[3]:
                edges.add((match[1], match[3]))
            else:
                nodes.add(match[1])
        names = {tree.ROOT: "n_root"} | {i: f"n{i}" for i in range(len(tree))}
        assert nodes == set(names.values())
        assert edges == {(names[parent], names[child]) for parent, child in tree.to_networkx().edges}

    def test_labels_hold_text_tokens_score_and_finish(self) -> None:
        text = to_dot(awkward_tree())
        assert r'n0 [label="say \"x\\y\" & <b>\n2 tokens, score 0.25"];' in text
        assert r'n2 [label="ünï → 𝒳\n3 tokens, score 0, length"];' in text

    def test_path_to_the_chosen_node_is_bold(self) -> None:
        bold = [line for line in to_dot(awkward_tree(), chosen=2).splitlines() if "bold" in line]
        assert [line.split()[0] for line in bold] == ["n0", "n2", "n_root", "n0"]


class TestShapeStatistics:
    def test_small_tree_has_the_statistics_by_hand(self) -> None:
        shape = shape_statistics(awkward_tree())
        assert (shape.num_nodes, shape.num_leaves, shape.max_depth) == (3, 2, 2)
        assert (shape.mean_branching, shape.width_by_depth) == (1.5, (1, 2))
        assert shape.shared_token_share == pytest.approx(1 - 6 / (3 + 5))

    def test_statistics_agree_with_the_tree_of_a_search(self, searched_tree: SearchTree) -> None:
        shape = shape_statistics(searched_tree)
        depths = [node.depth for node in searched_tree.nodes]
        assert shape.num_nodes == sum(shape.width_by_depth) == len(searched_tree)
        assert shape.num_leaves == len(searched_tree.leaf_nodes())
        assert shape.width_by_depth == tuple(depths.count(depth) for depth in range(1, shape.max_depth + 1))
        assert 0 < shape.shared_token_share < 1

    def test_separate_paths_share_nothing_and_an_empty_tree_has_zeros(self) -> None:
        tree = SearchTree((1,))
        assert (shape_statistics(tree).mean_branching, shape_statistics(tree).width_by_depth) == (0.0, ())
        for token in (2, 3):
            tree.add_node(tree.ROOT, Step((token,), "x"))
        assert shape_statistics(tree).shared_token_share == 0.0
