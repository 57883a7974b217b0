"""Draft trees: their tokens, how these were sampled, and what a verification accepts of them.

Free of torch, like `decoding.core`. Node indices count the nodes of one draft; -1 is the root, the last committed
token, whose children are the first drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from decoding.fork import LazyProperty

R = TypeVar("R")

_MOST_KEPT = 32  # nodes: the masks of all of them take a megabyte at most
MAX_DRAFT_SIZE = 1024
"""Upper limit of settings that count levels of a draft, candidates of a token, or tokens of a context."""

DraftSampling = Literal["coupled", "likely", "without_replacement", "iid", "stochastic_beam", "dynamic_tree"]
"""How the children of a node were sampled from the drafter's distribution q:

coupled               the largest of log q + g, with the noise g that the target itself will use
likely                the largest of q, or the first by rank for a source without probabilities
without_replacement   the largest of log q + fresh noise: a sample of distinct tokens
iid                   independent draws from q; the same token may be drawn twice
stochastic_beam       as without_replacement, but of whole paths: the children of a level compete for a beam
dynamic_tree          as without_replacement, but each draw is where it is likeliest to be tried, given the earlier

In the last two, draws at other nodes decide whether there is a next child, but not its token.
"""

RANDOM_SAMPLING: tuple[DraftSampling, ...] = ("without_replacement", "iid", "stochastic_beam", "dynamic_tree")
"""Those that need fresh noise, and whose nodes must not be selected by their own probability."""

SELF_SHAPED: tuple[DraftSampling, ...] = ("stochastic_beam", "dynamic_tree")
"""Those that decide themselves where their nodes are: they need a number of nodes and no template."""

NodeDistribution = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Token ids `[k]` and their probabilities `[k]`, which sum to one."""


@dataclass(frozen=True)
class SamplingRecord:
    """How a draft was sampled, which a rejection rule needs to be lossless.

    children     for each parent with children, its child nodes in the order drawn; for `iid` a node may repeat
    draft_probs  for the same parents the distribution drawn from: tempered, truncated, renormalised; a copy that no
                 table changes later. Empty for `likely`, which needs none.
    """

    sampling: DraftSampling
    children: Mapping[int, tuple[int, ...]]
    draft_probs: Mapping[int, NodeDistribution]


class VerifiedPath(NamedTuple):
    """The accepted nodes of one draft, from the root down, and the token after them, which is not drafted."""

    accepted_nodes: tuple[int, ...]
    next_token: int


@dataclass  # not frozen: one is made for each branch and round
class VerifyResult:
    """Result for one branch: the accepted nodes in path order, and all tokens to commit, the last one not drafted."""

    accepted_nodes: tuple[int, ...]
    tokens: Tokens
    logprobs: tuple[float, ...] = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.accepted_nodes) + 1 == len(self.logprobs)


class DraftColumns(NamedTuple):
    """The nodes of a draft as arrays; see `Draft` for the fields.

    Labels and probabilities are empty where the draft has none.
    """

    tokens_N: npt.NDArray[np.int64]
    parents_N: npt.NDArray[np.int64]
    labels_N: npt.NDArray[np.int64]
    path_probabilities_N: npt.NDArray[np.float64]


def keep_small_trees(function: Callable[[tuple[int, ...]], R]) -> Callable[[tuple[int, ...]], R]:
    """Returns a function of a tree's parents that keeps its results for small trees, whose shapes come again."""
    from_cache = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def find(parents: tuple[int, ...]) -> R:
        return from_cache(parents) if len(parents) <= _MOST_KEPT else function(parents)

    return find


@keep_small_trees
def count_depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the depth of each node of a tree; 1 = child of the root.

    >>> count_depths((-1, 0, 0, -1))
    (1, 2, 2, 1)
    """
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return tuple(depths)


@dataclass(frozen=True)
class Draft:
    """Drafted tokens as a tree: `parents[i] < i`, and -1 means "right after the committed tokens".

    The empty draft is legal and is plain decoding. Siblings must differ in token id.

    path_probabilities  for each node, the estimated probability that it and all nodes above it are accepted; never
                        above its parent's
    labels              a number for each node that only the drafter interprets; returned to it in `Feedback`
    sampling_record     None where unknown, which the rejection rules refuse

    >>> Draft((5, 6, 9), (-1, 0, 0)).path_to(2)      # 5 then 9
    (0, 2)
    """

    tokens: Tokens = ()
    parents: tuple[int, ...] = ()
    path_probabilities: tuple[float, ...] = ()
    labels: tuple[int, ...] = ()
    sampling_record: SamplingRecord | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @LazyProperty
    def columns(self) -> DraftColumns:
        """The nodes as arrays. A drafter that has made the draft from them stores them here."""
        return DraftColumns(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.parents, dtype=np.int64),
            np.array(self.labels, dtype=np.int64),
            np.array(self.path_probabilities, dtype=np.float64),
        )

    @LazyProperty
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; 1 = child of the root."""
        return count_depths(self.parents)

    @property
    def is_iid(self) -> bool:
        """Whether its nodes are independent draws, of which a repeated one is a single node."""
        return self.sampling_record is not None and self.sampling_record.sampling == "iid"

    def path_to(self, node: int) -> tuple[int, ...]:
        """Returns the node indices from the first level down to `node`, `node` included; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(path[::-1])

    def follow_path(self, token_after: Callable[[int], int]) -> VerifiedPath:
        """Returns the path along the tokens `token_after(node)`, and the first of them that is not drafted.

        >>> Draft((5, 6, 9), (-1, 0, 0)).follow_path({-1: 5, 0: 9, 2: 1}.__getitem__)
        VerifiedPath(accepted_nodes=(0, 2), next_token=1)
        """
        path: list[int] = []
        last, token = -1, token_after(-1)
        # Once over all nodes: children come after their parent, and tokens of siblings differ.
        for node, (parent, drafted) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == last and drafted == token:
                path.append(node)
                last, token = node, token_after(node)
        return VerifiedPath(tuple(path), token)

    def select_nodes(self, nodes: Iterable[int]) -> Draft:
        """Returns the draft of these nodes alone, which must include the parent of each, in ascending order.

        The choice of nodes may depend on their own probability only for `coupled` and `likely` drafts. An `iid` draft
        keeps all children of a node or none, because a draw that repeats an earlier one would outlive the others.
        """
        order = tuple(nodes)
        if len(order) == len(self):
            return self
        record = self.sampling_record
        new = {-1: -1} | {old: i for i, old in enumerate(order)}  # the root stays -1
        if record is not None and self.is_iid:
            families = [{child in new for child in record.children[node]} for node in new if node in record.children]
            assert all(len(is_kept) == 1 for is_kept in families), "an iid draft must not lose some children of a node"
        if record is not None:
            record = SamplingRecord(
                record.sampling,
                {
                    new[parent]: remaining_children
                    for parent, children in record.children.items()
                    if parent in new and (remaining_children := tuple(new[node] for node in children if node in new))
                },
                # Not renormalised without the removed children: q is what the others were drawn from.
                {new[parent]: q for parent, q in record.draft_probs.items() if parent in new},
            )
        return Draft(
            tuple(self.tokens[i] for i in order),
            tuple(new[self.parents[i]] for i in order),
            tuple(self.path_probabilities[i] for i in order) if self.path_probabilities else (),
            tuple(self.labels[i] for i in order) if self.labels else (),
            record,
        )

    def truncate_to(self, *, nodes: int, depth: int) -> Draft:
        """Returns the draft without the nodes after the first `nodes` and without those deeper than `depth`.

        An `iid` draft of more nodes is dropped: which of them are the first depends on what was drawn.
        """
        # not deeper than it has nodes
        if len(self) <= nodes and (len(self) <= depth or max(self.depths) <= depth):
            return self
        if len(self) > nodes and self.is_iid:
            return Draft()
        return self.select_nodes(i for i, node_depth in enumerate(self.depths[:nodes]) if node_depth <= depth)

    def assert_invariants(self) -> None:
        """Asserts the invariants of every draft."""
        assert len(self.tokens) == len(self.parents)
        assert all(-1 <= p < i for i, p in enumerate(self.parents)), self.parents
        assert len(set(zip(self.parents, self.tokens, strict=True))) == len(self), "siblings must differ"
        assert not self.path_probabilities or len(self.path_probabilities) == len(self)
        assert not self.labels or len(self.labels) == len(self)
        fields = self.tokens, self.parents, self.labels, self.path_probabilities
        assert fields == tuple(tuple(column.tolist()) for column in self.columns)
        # A child above its parent would be selected without it.
        for i, probability in enumerate(self.path_probabilities):
            assert 0 <= probability <= (1 if self.parents[i] < 0 else self.path_probabilities[self.parents[i]])
        if self.sampling_record is not None:
            edges = {(parent, node) for parent, nodes in self.sampling_record.children.items() for node in nodes}
            assert edges == set(zip(self.parents, range(len(self)), strict=True))


@dataclass(frozen=True)
class TreeTemplate:
    """A tree shape: node i is the `ranks[i]`-th child (0 = first) of node `parents[i]`.

    Nodes come in order of expected value, so the first n nodes are a template too.

    >>> TreeTemplate.make_chain(3)
    TreeTemplate(parents=(-1, 0, 1), ranks=(0, 0, 0))
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        earlier: set[tuple[int, int]] = set()
        for i, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not (-1 <= parent < i and rank >= 0 and (rank == 0 or (parent, rank - 1) in earlier)):
                raise ValueError(f"node {i} of a template comes before its parent or its elder sibling")
            if (parent, rank) in earlier:
                raise ValueError(f"node {i} of a template repeats child {rank} of node {parent}")
            earlier.add((parent, rank))

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def make_chain(cls, length: int) -> TreeTemplate:
        """Returns a single path of `length` nodes."""
        return cls(tuple(range(-1, length - 1)), (0,) * length)

    @classmethod
    def make_branching(cls, factors: Iterable[int]) -> TreeTemplate:
        """Returns the tree whose nodes of depth d all have `factors[d]` children, level by level.

        >>> TreeTemplate.make_branching([2, 1])
        TreeTemplate(parents=(-1, -1, 0, 1), ranks=(0, 1, 0, 0))
        """
        parents, ranks, level, count = list[int](), list[int](), [-1], 0
        for factor in factors:
            parents += [parent for parent in level for _ in range(factor)]
            ranks += [*range(factor)] * len(level)
            level = list(range(count, len(parents)))
            count = len(parents)
        return cls(tuple(parents), tuple(ranks))
