"""The tree of a search: an append-only list of nodes linked by integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from decoding.core import FinishReason, Tokens
from search.voting import aggregate_scores

if TYPE_CHECKING:
    import networkx as nx


LOGPROB_DECIMALS = 4
SCORE_DIGITS = 6


def round_score(score: float) -> float:
    """Rounds a score to six significant digits: the digits after them depend on the batch, even in float64.

    >>> round_score(0.99999987), round_score(0.000123456789)
    (1.0, 0.000123457)
    """
    return float(f"{score:.{SCORE_DIGITS}g}")


@dataclass(frozen=True)
class Step:
    """Reasoning step: token ids up to and including the delimiter, and the text they decode to.

    logprobs       log-probability of each token under the model that generated it; empty if the engine reports none
    model          which model generated the step, where a router chooses between two; else None
    routing_score  the score by which the router chose that model
    """

    tokens: Tokens
    text: str
    logprobs: tuple[float, ...] = ()
    model: str | None = None
    routing_score: float | None = None

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability per token, or None if the engine reported none.

        To four decimals: in float32 the sixth depends on the batch, and where a model is sure of itself there is no
        other difference between steps. These are equal for every decision, and the earlier one comes first.
        """
        return round(sum(self.logprobs) / len(self.logprobs), LOGPROB_DECIMALS) if self.logprobs else None


@dataclass
class TreeNode:
    """Step attached to a tree.

    depth            steps on its path, itself included
    num_path_tokens  tokens on its path, its own included, prompt excluded
    score            None means "not scored", never 0
    finish           why the generation ended here; None while the node can be continued
    """

    parent: int
    step: Step
    depth: int
    num_path_tokens: int
    score: float | None = None
    finish: FinishReason | None = None


class SavedNode(TypedDict):
    """One node in the JSON of a tree; `model` and `routing_score` are left out where no router chose."""

    id: int
    parent: int
    depth: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    score: float | None
    finish: FinishReason | None
    model: NotRequired[str]
    routing_score: NotRequired[float | None]


class SavedTree(TypedDict):
    """The JSON of a tree."""

    root: list[int]
    nodes: list[SavedNode]


class SearchTree:
    """Append-only tree of steps. Nodes are numbered from 0 in the order they are added; `ROOT` stands for the prompt
    and is not a node.

    >>> tree = SearchTree((1, 2))
    >>> a = tree.add_node(tree.ROOT, Step((3,), "x"))
    >>> b = tree.add_node(a, Step((4, 5), "y"), finish="eos")
    >>> tree.prefix_tokens(b), tree.unique_tokens([a, b]), tree.path_text(b)
    ((1, 2, 3, 4, 5), 5, 'xy')
    """

    ROOT = -1

    def __init__(self, root: Tokens) -> None:
        self.root = root
        self.nodes: list[TreeNode] = []

    def __len__(self) -> int:
        return len(self.nodes)

    def add_node(
        self, parent: int, step: Step, *, score: float | None = None, finish: FinishReason | None = None
    ) -> int:
        """Adds a node and returns its index. *Mutates* the tree. Raises: IndexError for an unknown parent."""
        if not self.ROOT <= parent < len(self.nodes):
            raise IndexError(f"parent {parent} is not in a tree of {len(self.nodes)} nodes")
        above = None if parent == self.ROOT else self.nodes[parent]
        depth, num_tokens = (above.depth, above.num_path_tokens) if above else (0, 0)
        self.nodes.append(TreeNode(parent, step, depth + 1, num_tokens + len(step.tokens), score, finish))
        return len(self.nodes) - 1

    def path_nodes(self, node: int) -> list[int]:
        """Node indices from the first step down to `node`; empty for `ROOT`."""
        path: list[int] = []
        while node != self.ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def path_steps(self, node: int) -> list[Step]:
        """The steps from the root to `node`."""
        return [self.nodes[i].step for i in self.path_nodes(node)]

    def path_scores(self, node: int) -> list[float]:
        """Scores of the path's steps, without the steps that are not scored."""
        return [s for i in self.path_nodes(node) if (s := self.nodes[i].score) is not None]

    def path_score(self, node: int, agg_strategy: str) -> float | None:
        """The path's step scores aggregated into one; None unless every step of the path is scored."""
        scores = self.path_scores(node)
        return aggregate_scores(scores, agg_strategy) if scores and len(scores) == len(self.path_nodes(node)) else None

    def prefix_tokens(self, node: int) -> Tokens:
        """Token ids of prompt and path, the prefix of a request that continues the node."""
        return self.root + tuple(t for step in self.path_steps(node) for t in step.tokens)

    def path_text(self, node: int) -> str:
        """The text of the path, prompt excluded."""
        return "".join(step.text for step in self.path_steps(node))

    def leaf_nodes(self) -> list[int]:
        """Nodes without children, in order."""
        inner = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in inner]

    def finished_leaves(self) -> list[int]:
        """Leaves that ended with `eos` or a stop, not at a limit of tokens or time."""
        return [i for i in self.leaf_nodes() if self.nodes[i].finish in ("eos", "stop")]

    def unique_tokens(self, nodes: Iterable[int]) -> int:
        """KV tokens that a frontier of these nodes needs: the prompt and each node on their paths, counted once."""
        return len(self.root) + self.count_tokens(self.pinned_nodes(nodes))

    def pinned_nodes(self, nodes: Iterable[int]) -> set[int]:
        """Nodes on the paths to these nodes, themselves included: their KV is needed to continue them."""
        on_paths: set[int] = set()
        for node in nodes:
            while node != self.ROOT and node not in on_paths:  # above a known node the path is known too
                on_paths.add(node)
                node = self.nodes[node].parent
        return on_paths

    def count_tokens(self, nodes: Iterable[int]) -> int:
        """Number of tokens in the steps of these nodes, without their paths."""
        return sum(len(self.nodes[i].step.tokens) for i in nodes)

    def unshared_tokens(self, nodes: Sequence[int]) -> int:
        """KV tokens of the same frontier if branches shared no prefix."""
        return sum(len(self.prefix_tokens(node)) for node in nodes)

    def to_networkx(self) -> nx.DiGraph[int]:
        """Builds a directed graph with an edge from each parent to each child; node -1 is the prompt.

        Node attributes: `text`, `num_tokens`, `depth`, and where they have a value `score`, `finish`, `model` and
        `routing_score` (GraphML has no None).
        """
        import networkx as nx  # takes 0.1 s to import, and no search needs it

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_node(self.ROOT, text="", num_tokens=len(self.root), depth=0)
        for i, node in enumerate(self.nodes):
            optional = {
                "score": node.score,
                "finish": node.finish,
                "model": node.step.model,
                "routing_score": node.step.routing_score,
            }
            known = {name: value for name, value in optional.items() if value is not None}
            graph.add_node(i, text=node.step.text, num_tokens=len(node.step.tokens), depth=node.depth, **known)
            graph.add_edge(node.parent, i)
        return graph

    def to_dict(self) -> SavedTree:
        """Plain data for JSON, from which `from_dict` builds an equal tree (log-probabilities to six decimals)."""
        return {"root": list(self.root), "nodes": [_saved_node(i, node) for i, node in enumerate(self.nodes)]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchTree:
        """Builds the tree that `to_dict` saved; also reads `author` and `route`, the former names of `model` and
        `routing_score`."""
        tree = cls(tuple(data["root"]))
        for row in data["nodes"]:
            step = Step(
                tokens=tuple(row["tokens"]),
                text=row["text"],
                logprobs=tuple(row["logprobs"]),
                model=row.get("model", row.get("author")),
                routing_score=row.get("routing_score", row.get("route")),
            )
            tree.add_node(row["parent"], step, score=row["score"], finish=row["finish"])
        return tree

    def assert_invariants(self) -> None:
        """Asserts that indices, depths and token counts are consistent; cheap enough to call after every search."""
        for i, node in enumerate(self.nodes):
            assert self.ROOT <= node.parent < i, (i, node.parent)
            assert node.depth == len(self.path_nodes(i)), i
            assert node.step.tokens, f"node {i} has no tokens"
            assert not node.step.logprobs or len(node.step.logprobs) == len(node.step.tokens), i
            if node.parent != self.ROOT:
                assert self.nodes[node.parent].finish is None, f"node {i} continues a finished node"


def _saved_node(index: int, node: TreeNode) -> SavedNode:
    step = node.step
    saved: SavedNode = {
        "id": index,
        "parent": node.parent,
        "depth": node.depth,
        "text": step.text,
        "tokens": list(step.tokens),
        "logprobs": [round(logprob, 6) for logprob in step.logprobs],
        "score": node.score,
        "finish": node.finish,
    }
    if step.model is not None:
        saved |= {"model": step.model, "routing_score": step.routing_score}
    return saved
