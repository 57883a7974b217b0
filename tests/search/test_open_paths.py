"""Open branches are counted as they come and go; a count from scratch says the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search.open_paths import OpenPaths
from search.tree import Context, SearchTree, Step


def grow_tree(parents: list[int]) -> SearchTree:
    """A node per number, of one to three tokens, below an earlier node; every fourth behind a context of its own."""
    tree = SearchTree((1, 2))
    for i, number in enumerate(parents):
        earlier = number % (i + 1) - 1  # -1 is the prompt
        if number % 4 == 3:
            earlier = tree.add_context(Context((9,), "put in", sources=(), after=earlier if earlier >= 0 else None))
        tree.add_node(earlier, Step((5,) * (1 + number % 3), "step"))
    return tree


@given(parents=st.lists(st.integers(0, 50), min_size=1, max_size=25), data=st.data())
def test_counts_are_those_of_the_paths_from_scratch(parents: list[int], data: st.DataObject) -> None:
    tree = grow_tree(parents)
    nodes = st.integers(0, len(tree) - 1)
    paths, open_nodes = OpenPaths(tree), list[int]()
    for node in data.draw(st.lists(nodes, max_size=12)):
        if node in open_nodes and data.draw(st.booleans()):
            paths.remove(node)
            open_nodes.remove(node)
        else:  # also a second time: then it is open until it was removed twice
            paths.add(node)
            open_nodes.append(node)
        pinned = tree.pinned_nodes(open_nodes)
        assert (paths.num_nodes, paths.num_tokens) == (len(pinned), tree.count_tokens(pinned))
        further = data.draw(st.lists(nodes, max_size=4))
        groups = [further[:2], further[2:]]
        counts = []
        for some in (further[:2], further):
            pinned = tree.pinned_nodes([*open_nodes, *some])
            counts.append((len(pinned), tree.count_tokens(pinned)))
        assert paths.count_with(*groups) == counts
