"""The tree of a search: an append-only list of nodes linked by integers, below one prompt or several."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from decoding.core import FinishReason, Tokens, Vector
from search.voting import aggregate_scores

if TYPE_CHECKING:
    import networkx as nx


Purpose = Literal["solution", "notes", "feedback"]
"""What a context asks for. Only solutions are read for answers."""

LOGPROB_DECIMALS = 4
SCORE_DIGITS = 6


@lru_cache(maxsize=1 << 16)  # a path comes with the scores of all its steps each time that it grows by one
def round_score(score: float) -> float:
    """Rounds a score to six significant digits: the digits after them depend on the batch, even in float64.

    >>> round_score(0.99999987), round_score(0.000123456789)
    (1.0, 0.000123457)
    """
    return float(f"{score:.{SCORE_DIGITS}g}")


@dataclass(slots=True)  # a frozen one takes three times as long to make, and every branch and step makes one
class Step:
    """Reasoning step: token ids up to and including the delimiter, and the text they decode to. It never changes.

    logprobs       log-probability of each token under the model that generated it; empty if the engine reports none
    model          which model generated the step, where a router chooses between two; else None
    routing_score  the score by which the router chose that model
    confidences    float32 per token, see `search.confidence`; None where the search did not ask for it
    entropies      float32 per token, of the distribution that it was chosen from, in nats; None as above
    """

    tokens: Tokens
    text: str
    logprobs: tuple[float, ...] = ()
    model: str | None = None
    routing_score: float | None = None
    # not compared: `==` of arrays is no bool
    confidences: Vector | None = field(default=None, compare=False, repr=False)
    entropies: Vector | None = field(default=None, compare=False, repr=False)

    def drop_tokens(self, count: int, text: str) -> Step:
        """Returns the step without its first `count` tokens; `text` is that of the others."""
        return replace(
            self,
            tokens=self.tokens[count:],
            text=text,
            logprobs=self.logprobs[count:],
            confidences=None if self.confidences is None else self.confidences[count:],
            entropies=None if self.entropies is None else self.entropies[count:],
        )

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability per token, or None if the engine reported none.

        To four decimals: in float32 the sixth depends on the batch, and where a model is sure of itself there is no
        other difference between steps. These are equal for every decision, and the earlier one comes first.
        """
        return round(sum(self.logprobs) / len(self.logprobs), LOGPROB_DECIMALS) if self.logprobs else None


@dataclass(frozen=True)
class Context:
    """Prompt that a search wrote itself. It begins new paths, which have nothing to do with the first prompt.

    tokens   its ids; with `after` those put in behind the path to this node
    text     what was asked, without what the model's prompt format adds
    purpose  what the model writes behind it
    sources  nodes that it was made from, whose texts it may hold
    after    node whose prompt and path come before `tokens`; None: it begins with `tokens`
    """

    tokens: Tokens
    text: str
    purpose: Purpose = "solution"
    sources: tuple[int, ...] = ()
    after: int | None = None


@dataclass(slots=True)
class TreeNode:
    """Step attached to a tree.

    depth            steps from the first prompt, itself included; behind a context, those of its deepest source count
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


class SavedContext(TypedDict):
    """One context in the JSON of a tree."""

    tokens: list[int]
    text: str
    purpose: Purpose
    sources: list[int]
    after: int | None


class SavedTree(TypedDict):
    """The JSON of a tree; `contexts` is left out where there are none. A node below the first of them has parent -2,
    below the second -3, and so on."""

    root: list[int]
    nodes: list[SavedNode]
    contexts: NotRequired[list[SavedContext]]


class SearchTree:
    """Append-only tree of steps. Nodes are numbered from 0 in the order they are added; `ROOT` stands for the prompt
    and is not a node.

    A search may add contexts, prompts that it wrote itself. They are numbered -2, -3, ... and are not nodes either. The
    path to a node begins behind the prompt or the context that it is below.

    >>> tree = SearchTree((1, 2))
    >>> a = tree.add_node(tree.ROOT, Step((3,), "x"))
    >>> b = tree.add_node(a, Step((4, 5), "y"), finish="eos")
    >>> tree.prefix_tokens(b), tree.unique_tokens([a, b]), tree.path_text(b)
    ((1, 2, 3, 4, 5), 5, 'xy')
    >>> again = tree.add_context(Context((1, 2, 9), "again", sources=(b,)))
    >>> c = tree.add_node(again, Step((6,), "z"))
    >>> again, tree.prefix_tokens(c), tree.unique_tokens([b, c]), tree.path_text(c)
    (-2, (1, 2, 9, 6), 7, 'z')
    """

    ROOT = -1

    def __init__(self, root: Tokens) -> None:
        self.root = root
        self.nodes: list[TreeNode] = []
        self.contexts: list[Context] = []

    def __len__(self) -> int:
        return len(self.nodes)

    def add_node(
        self, parent: int, step: Step, *, score: float | None = None, finish: FinishReason | None = None
    ) -> int:
        """Adds a node and returns its index. *Mutates* the tree. Raises: IndexError for an unknown parent."""
        if not self.ROOT - len(self.contexts) <= parent < len(self.nodes):
            raise IndexError(f"parent {parent} is not in a tree of {len(self.nodes)} nodes")
        num_tokens = self.nodes[parent].num_path_tokens if parent >= 0 else 0
        depth = self._depth_of(parent) + 1
        self.nodes.append(TreeNode(parent, step, depth, num_tokens + len(step.tokens), score, finish))
        return len(self.nodes) - 1

    def add_context(self, context: Context) -> int:
        """Adds a context and returns its number, the parent of the nodes below it. *Mutates* the tree.

        Raises: IndexError for an unknown node in `sources` or `after`.
        """
        for node in (*context.sources, *([] if context.after is None else [context.after])):
            if not 0 <= node < len(self.nodes):
                raise IndexError(f"node {node} is not in a tree of {len(self.nodes)} nodes")
        self.contexts.append(context)
        return self.ROOT - len(self.contexts)

    def find_context(self, node: int) -> Context | None:
        """The context that the path to `node` begins behind, or that this number stands for; None: the first prompt."""
        start = self._start_of(node) if self.contexts else self.ROOT
        return None if start == self.ROOT else self.contexts[self.ROOT - 1 - start]

    def path_nodes(self, node: int) -> list[int]:
        """Node indices from the first step down to `node`; empty for `ROOT` and for a context."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def path_steps(self, node: int) -> list[Step]:
        """The steps from the prompt, or from the context, to `node`."""
        return [self.nodes[i].step for i in self.path_nodes(node)]

    def path_scores(self, node: int) -> list[float]:
        """Scores of the path's steps, without the steps that are not scored."""
        return [s for i in self.path_nodes(node) if (s := self.nodes[i].score) is not None]

    def path_score(self, node: int, agg_strategy: str) -> float | None:
        """The path's step scores aggregated into one, without the steps that the scorer left out.

        None unless its last step is scored: a scorer that knows a path knows its end.
        """
        if node < 0 or self.nodes[node].score is None:
            return None
        if agg_strategy == "last":  # without the walk up: paths of long thoughts have hundreds of steps
            return self.nodes[node].score
        return aggregate_scores(self.path_scores(node), agg_strategy)

    def prefix_tokens(self, node: int, steps: Sequence[Step] | None = None) -> Tokens:
        """Token ids of prompt and path, the prefix of a request that continues the node.

        `steps` are those of its path; None: they are looked up.
        """
        steps = self.path_steps(node) if steps is None else steps
        context = self.find_context(node)
        if context is None:
            before = self.root
        else:
            before = (() if context.after is None else self.prefix_tokens(context.after)) + context.tokens
        tokens = list(before)
        for step in steps:
            tokens += step.tokens  # copies a tuple as a whole; a chain of iterators takes its tokens one by one
        return tuple(tokens)

    def count_question_tokens(self, node: int) -> int:
        """Number of ids in the prompt with which the prefix of a node begins: before all that was written."""
        context = self.find_context(node)
        if context is None:
            return len(self.root)
        return len(context.tokens) if context.after is None else self.count_question_tokens(context.after)

    def count_prefix_tokens(self, node: int) -> int:
        """Number of ids in the prefix of a node."""
        context, tokens = self.find_context(node), self.nodes[node].num_path_tokens if node >= 0 else 0
        if context is None:
            return len(self.root) + tokens
        before = 0 if context.after is None else self.count_prefix_tokens(context.after)
        return before + len(context.tokens) + tokens

    def path_text(self, node: int) -> str:
        """The text of the path, prompt and context excluded."""
        return "".join(step.text for step in self.path_steps(node))

    def leaf_nodes(self) -> list[int]:
        """Nodes without children, in order."""
        inner = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in inner]

    def finished_leaves(self) -> list[int]:
        """Leaves that ended with `eos` or a stop, not at a limit of tokens or time."""
        return [i for i in self.leaf_nodes() if self.nodes[i].finish in ("eos", "stop")]

    def unique_tokens(self, nodes: Iterable[int]) -> int:
        """KV tokens that a frontier of these nodes needs: prompts and each node on their paths, counted once."""
        frontier = list(nodes)
        return self.count_prompt_tokens(frontier) + self.count_tokens(self.pinned_nodes(frontier))

    def iter_upwards(self, node: int) -> Iterator[int]:
        """Yields the nodes whose KV is needed to continue this one: it and those above, up to its prompt.

        So is that of the path which comes before a context.
        """
        while True:
            while node >= 0:
                yield node
                node = self.nodes[node].parent
            context = self.find_context(node) if node < self.ROOT else None
            if context is None or context.after is None:
                return
            node = context.after

    def pinned_nodes(self, nodes: Iterable[int]) -> set[int]:
        """Nodes on the paths to these nodes, themselves included."""
        return set(self.iter_further(nodes, set()))

    def iter_further(self, nodes: Iterable[int], on_paths: set[int], known: Container[int] = ()) -> Iterator[int]:
        """Yields the nodes on the paths to these nodes that are neither in `on_paths` nor in `known`.

        Both hold whole paths. *Mutates* `on_paths`: the nodes are added to it.
        """
        for node in nodes:
            for above in self.iter_upwards(node):
                if above in on_paths or above in known:
                    break  # and so are the nodes above it
                on_paths.add(above)
                yield above

    def count_prompt_tokens(self, nodes: Iterable[int]) -> int:
        """KV tokens of the prompts and contexts above these nodes; what two of them begin with counts once."""
        starts = {self._start_of(node) for node in nodes} or {self.ROOT}
        prompts, put_in, waiting = set[Tokens](), 0, list(starts)
        while waiting:
            context = self.find_context(start := waiting.pop())
            if context is None or context.after is None:
                prompts.add(self.prefix_tokens(start))
                continue
            put_in += len(context.tokens)
            before = self._start_of(context.after)
            if before not in starts:
                starts.add(before)
                waiting.append(before)
        in_order = sorted(prompts)  # neighbours share the most
        shared = sum(_count_shared(one, other) for one, other in pairwise(in_order))
        return put_in + sum(map(len, in_order)) - shared

    def count_tokens(self, nodes: Iterable[int]) -> int:
        """Number of tokens in the steps of these nodes, without their paths."""
        return sum(len(self.nodes[i].step.tokens) for i in nodes)

    def unshared_tokens(self, nodes: Sequence[int]) -> int:
        """KV tokens of the same frontier if branches shared no prefix."""
        return sum(map(self.count_prefix_tokens, nodes))

    def to_networkx(self) -> nx.DiGraph[int]:
        """Builds a directed graph with an edge from each parent to each child; node -1 is the prompt.

        A context is a node too (-2, -3, ...), with an edge from each of its sources. Node attributes: `text`,
        `num_tokens`, `depth`, and where they have a value `score`, `finish`, `model` and `routing_score` (GraphML has
        no None); of a context also `purpose`.
        """
        import networkx as nx  # takes 0.1 s to import, and no search needs it

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_node(self.ROOT, text="", num_tokens=len(self.root), depth=0)
        for number, context in self.numbered_contexts():
            about = {"text": context.text, "num_tokens": len(context.tokens), "purpose": context.purpose}
            graph.add_node(number, depth=self._depth_of(number), **about)
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
        graph.add_edges_from((node, number) for number, context in self.numbered_contexts() for node in context.sources)
        return graph

    def numbered_contexts(self) -> list[tuple[int, Context]]:
        """The contexts with their numbers, in the order in which they were added."""
        return [(self.ROOT - 1 - i, context) for i, context in enumerate(self.contexts)]

    def to_dict(self) -> SavedTree:
        """Plain data for JSON, from which `from_dict` builds an equal tree (log-probabilities to six decimals)."""
        saved: SavedTree = {
            "root": list(self.root),
            "nodes": [_saved_node(i, node) for i, node in enumerate(self.nodes)],
        }
        if self.contexts:
            saved["contexts"] = [_saved_context(context) for context in self.contexts]
        return saved

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchTree:
        """Builds the tree that `to_dict` saved; also reads `author` and `route`, the former names of `model` and
        `routing_score`."""
        tree = cls(tuple(data["root"]))
        contexts = [_read_context(row) for row in data.get("contexts", ())]
        for row in data["nodes"]:
            while tree.ROOT - len(tree.contexts) > row["parent"] and len(tree.contexts) < len(contexts):
                tree.add_context(contexts[len(tree.contexts)])  # its sources are in the tree by now
            step = Step(
                tokens=tuple(row["tokens"]),
                text=row["text"],
                logprobs=tuple(row["logprobs"]),
                model=row.get("model", row.get("author")),
                routing_score=row.get("routing_score", row.get("route")),
            )
            tree.add_node(row["parent"], step, score=row["score"], finish=row["finish"])
        for context in contexts[len(tree.contexts) :]:
            tree.add_context(context)
        return tree

    def assert_invariants(self) -> None:
        """Asserts that indices, depths and token counts are consistent; cheap enough to call after every search."""
        for i, node in enumerate(self.nodes):
            assert self.ROOT - len(self.contexts) <= node.parent < i, (i, node.parent)
            assert node.depth == self._depth_of(node.parent) + 1, i
            assert node.num_path_tokens == self.count_tokens(self.path_nodes(i)), i
            assert node.step.tokens, f"node {i} has no tokens"
            assert not node.step.logprobs or len(node.step.logprobs) == len(node.step.tokens), i
            if node.parent >= 0:
                assert self.nodes[node.parent].finish is None, f"node {i} continues a finished node"
        for number, context in self.numbered_contexts():
            assert context.tokens, f"context {number} has no tokens"
            below = [i for i, node in enumerate(self.nodes) if node.parent == number]
            assert all(0 <= source < min(below, default=len(self.nodes)) for source in context.sources), number
            assert context.after is None or context.after in context.sources, number

    def _start_of(self, node: int) -> int:
        """The number of the prompt or context that the path to `node` begins behind."""
        while node >= 0:
            node = self.nodes[node].parent
        return node

    def _depth_of(self, node: int) -> int:
        """The depth of a node; of a prompt 0, of a context that of its deepest source."""
        if node >= 0:
            return self.nodes[node].depth
        context = self.find_context(node)
        return 0 if context is None else max((self.nodes[i].depth for i in context.sources), default=0)


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


def _saved_context(context: Context) -> SavedContext:
    return {
        "tokens": list(context.tokens),
        "text": context.text,
        "purpose": context.purpose,
        "sources": list(context.sources),
        "after": context.after,
    }


def _read_context(row: Mapping[str, Any]) -> Context:
    return Context(tuple(row["tokens"]), row["text"], row["purpose"], tuple(row["sources"]), row["after"])


def _count_shared(one: Tokens, other: Tokens) -> int:
    """The number of ids that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
