"""The tree of a search: an append-only list of nodes linked by integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.core import FinishReason, Tokens
from search.aggregation import aggregate

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Step:
    """One unit of reasoning: token ids up to and including the delimiter, and the text they decode to.

    `logprobs` are the writer's own log-probabilities of `tokens`, one each. Where several models write, `author` is who
    wrote it and `route` the number that was decided by.
    """

    tokens: Tokens
    text: str
    logprobs: tuple[float, ...] = ()
    author: str | None = None
    route: float | None = None

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability per token, or None where the writer gave none."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else None


@dataclass
class Node:
    """A step attached to a tree. `score` None means "not scored", never 0; `finish` is None while it can grow;
    `written` counts the tokens from the first step of its path to its own last."""

    parent: int
    step: Step
    depth: int
    written: int
    score: float | None = None
    finish: FinishReason | None = None


class SearchTree:
    """Nodes are numbered in the order they were added; `ROOT` stands for the prompt and is not a node.

    >>> tree = SearchTree((1, 2))
    >>> a = tree.add(tree.ROOT, Step((3,), "x"))
    >>> b = tree.add(a, Step((4, 5), "y"), finish="eos")
    >>> tree.tokens(b), tree.unique_tokens([a, b]), tree.text(b)
    ((1, 2, 3, 4, 5), 5, 'xy')
    """

    ROOT = -1

    def __init__(self, root: Tokens) -> None:
        self.root = root
        self.nodes: list[Node] = []

    def __len__(self) -> int:
        return len(self.nodes)

    def add(self, parent: int, step: Step, *, score: float | None = None, finish: FinishReason | None = None) -> int:
        """The index of the new node. *Mutates* the tree."""
        if not self.ROOT <= parent < len(self.nodes):
            raise IndexError(f"parent {parent} is not in a tree of {len(self.nodes)} nodes")
        depth, written = (0, 0) if parent == self.ROOT else (self.nodes[parent].depth, self.nodes[parent].written)
        self.nodes.append(Node(parent, step, depth + 1, written + len(step.tokens), score, finish))
        return len(self.nodes) - 1

    def path(self, node: int) -> list[int]:
        """Node indices from the first step down to `node`; empty for `ROOT`."""
        path: list[int] = []
        while node != self.ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def steps(self, node: int) -> list[Step]:
        """The steps from the root to `node`."""
        return [self.nodes[i].step for i in self.path(node)]

    def scores(self, node: int) -> list[float]:
        """Scores of the path's steps; steps that were not scored are left out."""
        return [s for i in self.path(node) if (s := self.nodes[i].score) is not None]

    def score(self, node: int, how: str) -> float | None:
        """The path's step scores folded into one; None unless every step of it is scored."""
        scores = self.scores(node)
        return aggregate(scores, how) if scores and len(scores) == len(self.path(node)) else None

    def tokens(self, node: int) -> Tokens:
        """Prompt and path as one prefix: what is sent to the engine."""
        return self.root + tuple(t for step in self.steps(node) for t in step.tokens)

    def text(self, node: int) -> str:
        """The text of the path, prompt excluded."""
        return "".join(step.text for step in self.steps(node))

    def leaves(self) -> list[int]:
        """Nodes without children, in order."""
        inner = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in inner]

    def finished(self) -> list[int]:
        """Leaves that ended by themselves (`eos` or a stop), not by running out of room or time."""
        return [i for i in self.leaves() if self.nodes[i].finish in ("eos", "stop")]

    def unique_tokens(self, nodes: Iterable[int]) -> int:
        """KV tokens a frontier of these nodes pins: the prompt and every node on their paths, once."""
        return len(self.root) + self.count_tokens(self.pinned(nodes))

    def pinned(self, nodes: Iterable[int]) -> set[int]:
        """The nodes on the paths to these, themselves included: what must stay in memory to continue them."""
        found: set[int] = set()
        for node in nodes:
            while node != self.ROOT and node not in found:
                found.add(node)
                node = self.nodes[node].parent
        return found

    def count_tokens(self, nodes: Iterable[int]) -> int:
        """Tokens of the steps of these nodes."""
        return sum(len(self.nodes[i].step.tokens) for i in nodes)

    def unshared_tokens(self, nodes: Sequence[int]) -> int:
        """The same frontier's KV if no branch shared anything."""
        return sum(len(self.tokens(node)) for node in nodes)

    def to_networkx(self) -> nx.DiGraph[int]:
        """A directed graph for drawing and analysis; node -1 is the prompt."""
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_node(self.ROOT, text="", tokens=len(self.root), score=None, finish=None)
        for i, node in enumerate(self.nodes):
            graph.add_node(i, text=node.step.text, tokens=len(node.step.tokens), score=node.score, finish=node.finish)
            graph.add_edge(node.parent, i)
        return graph

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` turns back into an equal tree."""
        return {
            "root": list(self.root),
            "nodes": [
                {
                    "id": i,
                    "parent": node.parent,
                    "depth": node.depth,
                    "text": node.step.text,
                    "tokens": list(node.step.tokens),
                    "logprobs": [round(p, 6) for p in node.step.logprobs],
                    "score": node.score,
                    "finish": node.finish,
                    **({} if node.step.author is None else {"author": node.step.author, "route": node.step.route}),
                }
                for i, node in enumerate(self.nodes)
            ],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SearchTree:
        """The tree a `to_dict` came from (log-probabilities to six decimals)."""
        tree = cls(tuple(data["root"]))
        for row in data["nodes"]:
            who = (row.get("author"), row.get("route"))
            step = Step(tuple(row["tokens"]), row["text"], tuple(row["logprobs"]), *who)
            tree.add(row["parent"], step, score=row["score"], finish=row["finish"])
        return tree

    def check(self) -> None:
        """Asserts what must always hold; cheap enough to call after every search."""
        for i, node in enumerate(self.nodes):
            assert self.ROOT <= node.parent < i, (i, node.parent)
            assert node.depth == len(self.path(i)), i
            assert node.step.tokens, f"node {i} has no tokens"
            assert not node.step.logprobs or len(node.step.logprobs) == len(node.step.tokens), i
            if node.parent != self.ROOT:
                assert self.nodes[node.parent].finish is None, f"node {i} hangs from a finished node"
