"""Search trees for other programs: GraphML and DOT files, rollouts to train on, and statistics of a tree's shape."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import BinaryIO, TypedDict

from decoding.core import FinishReason
from search.tree import Purpose, SearchTree

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


class RolloutPrompt(TypedDict):
    """The first prompt (`id` -1, purpose `solution`), or a context (-2, -3, ...) with all its ids."""

    id: int
    ids: list[int]
    purpose: Purpose
    sources: list[int]


class Segment(TypedDict):
    """One step. `parent` is a segment, or the `id` of a prompt; `value` is the mean reward of the rewarded solutions
    that go through it or through a prompt that was made from it; None if there are none."""

    id: int
    parent: int
    ids: list[int]
    logprobs: list[float]
    score: float | None
    finish: FinishReason | None
    value: float | None


class Rollout(TypedDict):
    """One path, from its prompt to its end, under the names that agent loops of verl give the parts of a sample.

    node               the path's last segment
    segments           its segments, first to last
    segment_ends       the end (exclusive) of each segment in `response_ids`
    purpose            what the path's prompt asked for
    response_mask      1 for tokens to train on; 0 where the log-probability is 0: text that was put in has that, and
                       tokens that had no alternative
    response_logprobs  log-probability of each token when it was sampled; None where the engine gave none
    reward_score       reward of a solution; of any other path the `value` of its last segment
    is_solution        whether it is a candidate of the search
    """

    node: int
    segments: list[int]
    segment_ends: list[int]
    purpose: Purpose
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None
    reward_score: float | None
    is_solution: bool


class RolloutTree(TypedDict):
    """A tree to train on: what its paths share is in `prompts` and `segments`, and each path is whole in `rollouts`."""

    prompts: list[RolloutPrompt]
    segments: list[Segment]
    rollouts: list[Rollout]


def to_rollouts(tree: SearchTree, rewards: Mapping[int, float | None]) -> RolloutTree:
    """Converts a tree to segments and rollouts; `rewards` has the candidates of the search and their rewards.

    There is a rollout for each candidate and each leaf, in the order of their nodes.

    >>> from search.tree import Step
    >>> tree = SearchTree((1, 2))
    >>> a = tree.add_node(tree.ROOT, Step((3, 4), "x", (-0.5, 0.0)))
    >>> b, c = tree.add_node(a, Step((5,), "y", (-0.1,))), tree.add_node(a, Step((6,), "z", (-2.0,)))
    >>> made = to_rollouts(tree, {b: 1.0, c: 0.0})
    >>> [segment["value"] for segment in made["segments"]]
    [0.5, 1.0, 0.0]
    >>> first = made["rollouts"][0]
    >>> first["response_ids"], first["segment_ends"], first["response_mask"], first["reward_score"]
    ([3, 4, 5], [2, 3], [1, 0, 1], 1.0)
    """
    through: dict[int, list[float]] = {}  # segment -> rewards of the solutions that depend on it
    for node, reward in rewards.items():
        if reward is not None:
            for segment in _find_dependencies(tree, node):
                through.setdefault(segment, []).append(reward)
    values = {segment: fmean(given) for segment, given in through.items()}
    prompts = [RolloutPrompt(id=tree.ROOT, ids=list(tree.root), purpose="solution", sources=[])]
    for number, context in tree.numbered_contexts():
        ids, sources = list(tree.prefix_tokens(number)), list(context.sources)
        prompts.append(RolloutPrompt(id=number, ids=ids, purpose=context.purpose, sources=sources))
    segments = [
        Segment(
            id=i,
            parent=node.parent,
            ids=list(node.step.tokens),
            logprobs=list(node.step.logprobs),
            score=node.score,
            finish=node.finish,
            value=values.get(i),
        )
        for i, node in enumerate(tree.nodes)
    ]
    ends = sorted({*tree.leaf_nodes(), *rewards})
    rollouts = [_make_rollout(tree, node, rewards.get(node, values.get(node)), node in rewards) for node in ends]
    return RolloutTree(prompts=prompts, segments=segments, rollouts=rollouts)


def _find_dependencies(tree: SearchTree, node: int) -> set[int]:
    """Returns the segments of a path, and of the paths that its prompt was made from, and so on."""
    segments: set[int] = set()
    ends = {node}
    while ends:
        segments.update(path := tree.path_nodes(end := ends.pop()))
        context = tree.find_context(end) if path else None
        ends.update(source for source in (context.sources if context else ()) if source not in segments)
    return segments


def _make_rollout(tree: SearchTree, node: int, reward: float | None, is_solution: bool) -> Rollout:
    path, context = tree.path_nodes(node), tree.find_context(node)
    steps = [tree.nodes[i].step for i in path]
    response = [token for step in steps for token in step.tokens]
    logprobs = [logprob for step in steps for logprob in step.logprobs]
    has_logprobs = len(logprobs) == len(response)
    return Rollout(
        node=node,
        segments=path,
        segment_ends=[tree.nodes[i].num_path_tokens for i in path],
        purpose="solution" if context is None else context.purpose,
        prompt_ids=list(tree.prefix_tokens(node)[: tree.count_prefix_tokens(node) - len(response)]),
        response_ids=response,
        response_mask=[int(logprob != 0) for logprob in logprobs] if has_logprobs else [1] * len(response),
        response_logprobs=logprobs if has_logprobs else None,
        reward_score=reward,
        is_solution=is_solution,
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
    Contexts are nodes between the prompt and the steps (`c1`, `c2`, ...), with dashed edges from their sources.

    >>> print(to_dot(SearchTree((1, 2, 3))), end="")
    digraph search_tree {
      node [shape=box];
      n_root [label="prompt\\n3 tokens"];
    }
    """
    bold = set() if chosen is None else set(tree.path_nodes(chosen))
    prompt = _quoted(f"prompt\n{len(tree.root)} tokens")
    lines = ["digraph search_tree {", "  node [shape=box];", f"  n_root [label={prompt}];"]
    for number, context in tree.numbered_contexts():
        label = f"{context.purpose}: {textwrap.shorten(context.text, LABEL_WIDTH)}\n{len(context.tokens)} tokens"
        lines.append(f"  {_name_start(number)} [label={_quoted(label)}];")
    for i, node in enumerate(tree.nodes):
        score = "" if node.score is None else f", score {node.score:.3g}"
        finish = "" if node.finish is None else f", {node.finish}"
        label = f"{textwrap.shorten(node.step.text, LABEL_WIDTH)}\n{len(node.step.tokens)} tokens{score}{finish}"
        lines.append(f"  n{i} [label={_quoted(label)}{', style=bold' if i in bold else ''}];")
    for i, node in enumerate(tree.nodes):
        parent = f"n{node.parent}" if node.parent >= 0 else _name_start(node.parent)
        lines.append(f"  {parent} -> n{i}{' [style=bold]' if i in bold else ''};")
    for number, context in tree.numbered_contexts():
        lines += [f"  n{source} -> {_name_start(number)} [style=dashed];" for source in context.sources]
    return "\n".join([*lines, "}"]) + "\n"


def _name_start(number: int) -> str:
    """The name of the prompt or of a context."""
    return "n_root" if number == SearchTree.ROOT else f"c{SearchTree.ROOT - number}"


def _quoted(label: str) -> str:
    """A DOT string; a newline becomes the two characters that DOT reads as a centred line break."""
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
