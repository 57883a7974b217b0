"""Search trees for other programs: GraphML and DOT files, and statistics of a tree's shape."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from search.tree import SearchTree

LABEL_WIDTH = 60
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class TreeShape:
    """Statistics of a tree; the prompt is its root and is counted in none of them except `mean_branching`.

    num_nodes            steps in the tree
    num_leaves           steps without a continuation
    max_depth            steps on the longest path
    mean_branching       continuations per node that has any, the prompt included; 0 for an empty tree
    width_by_depth       steps at depth 1, 2, ...; `width_by_depth[0]` are the first steps
    shared_token_share   fraction in [0, 1) of the tokens of all root-to-leaf paths that another path already holds;
                         0 where all paths are separate
    """

    num_nodes: int
    num_leaves: int
    max_depth: int
    mean_branching: float
    width_by_depth: tuple[int, ...]
    shared_token_share: float


def shape_statistics(tree: SearchTree) -> TreeShape:
    """Computes the statistics of a tree's shape.

    >>> from search.tree import Step
    >>> tree = SearchTree((1, 2))
    >>> a = tree.add_node(tree.ROOT, Step((3, 4), "x"))
    >>> b, c = tree.add_node(a, Step((5, 6), "y")), tree.add_node(a, Step((7, 8), "z"))
    >>> shape = shape_statistics(tree)
    >>> shape.num_leaves, shape.width_by_depth, shape.mean_branching, shape.shared_token_share
    (2, (1, 2), 1.5, 0.25)
    """
    # Plain counts: every solved problem needs them, and importing networkx takes longer than solving an easy one.
    widths = Counter(node.depth for node in tree.nodes)
    inner = list(Counter(node.parent for node in tree.nodes).values())
    leaves = tree.leaf_nodes()
    unshared = sum(tree.nodes[leaf].num_path_tokens for leaf in leaves)
    unique = tree.count_tokens(range(len(tree)))
    return TreeShape(
        num_nodes=len(tree),
        num_leaves=len(leaves),
        max_depth=max(widths, default=0),
        mean_branching=sum(inner) / len(inner) if inner else 0.0,
        width_by_depth=tuple(widths[depth] for depth in sorted(widths)),
        shared_token_share=1 - unique / unshared if unshared else 0.0,
    )


def write_graphml(tree: SearchTree, file: Path | BinaryIO) -> None:
    """Writes the tree as GraphML, for Gephi, Cytoscape, yEd and `networkx.read_graphml(path, node_type=int)`.

    `file` is a path or an open file. Nodes have the attributes of `SearchTree.to_networkx`; an attribute without a
    value is left out, and a character that XML cannot hold becomes U+FFFD.
    """
    import networkx as nx

    graph = tree.to_networkx()
    for _, attributes in graph.nodes(data=True):
        attributes["text"] = _NOT_IN_XML.sub("\ufffd", attributes["text"])
    nx.write_graphml(graph, file)


def to_dot(tree: SearchTree, chosen: int | None = None) -> str:
    """Formats the tree in the DOT language of Graphviz; nodes and edges on the path to `chosen` are drawn bold.

    Every line but the first two and the last is one statement: all nodes, the prompt (`n_root`) first, then all edges.

    >>> print(to_dot(SearchTree((1, 2, 3))), end="")
    digraph search_tree {
      node [shape=box];
      n_root [label="prompt\\n3 tokens"];
    }
    """
    bold = set() if chosen is None else set(tree.path_nodes(chosen))
    prompt = _quoted(f"prompt\n{len(tree.root)} tokens")
    lines = ["digraph search_tree {", "  node [shape=box];", f"  n_root [label={prompt}];"]
    for i, node in enumerate(tree.nodes):
        score = "" if node.score is None else f", score {node.score:.3g}"
        finish = "" if node.finish is None else f", {node.finish}"
        label = f"{textwrap.shorten(node.step.text, LABEL_WIDTH)}\n{len(node.step.tokens)} tokens{score}{finish}"
        lines.append(f"  n{i} [label={_quoted(label)}{', style=bold' if i in bold else ''}];")
    for i, node in enumerate(tree.nodes):
        parent = "n_root" if node.parent == tree.ROOT else f"n{node.parent}"
        lines.append(f"  {parent} -> n{i}{' [style=bold]' if i in bold else ''};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(label: str) -> str:
    """A DOT string; a newline becomes the two characters that DOT reads as a centred line break."""
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
