"""The words of speculation: what is guessed, how much of it, and what came of it.

Free of torch, like `decoding.core`. Node indices count the nodes of one draft; -1 is the anchor, the last
committed token, whose children are the first guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from decoding.core import SamplingParams, Tokens

DrawKind = Literal["coupled", "likely", "without_replacement", "iid"]
"""How the children of a node were picked from the drafter's distribution q:

coupled               the largest of log q + g, with the noise g the target itself will use
likely                the largest of q, or whatever a source without probabilities ranks first
without_replacement   the largest of log q + fresh noise: a sample of distinct tokens
iid                   independent draws from q; the same token may be drawn twice
"""


@dataclass(frozen=True)
class Drawn:
    """How a draft was drawn: what a rejection rule must know to undo it.

    draws   for each parent with children, its child nodes in the order drawn; for `iid` a node may repeat
    q       for the same parents the distribution drawn from: ids int64 `[k]` and probabilities float64 `[k]`, which
            sum to one (tempered, truncated, renormalised; a copy that no table changes later).
            Empty for `likely`, which needs none.
    """

    kind: DrawKind
    draws: Mapping[int, tuple[int, ...]]
    q: Mapping[int, tuple[Any, Any]]


@dataclass(frozen=True)
class Draft:
    """Guessed tokens as a tree: `parents[i] < i`, and -1 means "right after the committed tokens".

    The empty draft is legal and is plain decoding. Siblings must differ in token id.

    reach    for each node, the estimated probability that it is reached and accepted; never above its parent's
    labels   the drafter's own note on each node, which comes back to it in `Feedback`
    drawn    None where nothing is known, which the rejection rules refuse

    >>> Draft((5, 6, 9), (-1, 0, 0)).path_to(2)      # 5 then 9
    (0, 2)
    """

    tokens: Tokens = ()
    parents: tuple[int, ...] = ()
    reach: tuple[float, ...] = ()
    labels: tuple[int, ...] = ()
    drawn: Drawn | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How deep each node lies; 1 = child of the anchor."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices from the first level down to `node`, `node` included; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(path[::-1])

    def keep(self, nodes: Iterable[int]) -> Draft:
        """The draft of these nodes alone, which must include the parent of each, in ascending order.

        Which nodes go may depend on their own probability only for `coupled` and `likely` drafts; `iid` drafts may not
        be cut at all, because a draw that repeats an earlier one would outlive the others.
        """
        order = tuple(nodes)
        if len(order) == len(self):
            return self
        assert self.drawn is None or self.drawn.kind != "iid", "an iid draft was cut"
        new = {-1: -1} | {old: i for i, old in enumerate(order)}
        drawn = self.drawn and Drawn(
            self.drawn.kind,
            {
                new[parent]: left
                for parent, draws in self.drawn.draws.items()
                if parent in new and (left := tuple(new[node] for node in draws if node in new))
            },
            {new[parent]: q for parent, q in self.drawn.q.items() if parent in new},
        )
        return Draft(
            tuple(self.tokens[i] for i in order),
            tuple(new[self.parents[i]] for i in order),
            tuple(self.reach[i] for i in order) if self.reach else (),
            tuple(self.labels[i] for i in order) if self.labels else (),
            drawn,
        )

    def within(self, *, nodes: int, depth: int) -> Draft:
        """Without what follows the first `nodes` nodes or lies deeper than `depth`."""
        if len(self) <= nodes and (not self.depths or max(self.depths) <= depth):
            return self
        return self.keep(i for i, at in enumerate(self.depths[:nodes]) if at <= depth)

    def check(self) -> None:
        """Asserts what every draft promises."""
        assert len(self.tokens) == len(self.parents)
        assert all(-1 <= p < i for i, p in enumerate(self.parents)), self.parents
        assert len(set(zip(self.parents, self.tokens, strict=True))) == len(self), "siblings must differ"
        assert not self.reach or len(self.reach) == len(self)
        assert not self.labels or len(self.labels) == len(self)
        for i, reach in enumerate(self.reach):
            assert 0 <= reach <= (1 if self.parents[i] < 0 else self.reach[self.parents[i]])
        if self.drawn is not None:
            drawn = {(parent, node) for parent, nodes in self.drawn.draws.items() for node in nodes}
            assert drawn == set(zip(self.parents, range(len(self)), strict=True))


@dataclass(frozen=True)
class Branch:
    """A running request as a drafter or controller sees it: everything committed so far.

    `remaining` tokens may still be generated, so a draft deeper than `remaining - 1` is of no use.
    """

    request_id: int
    group: str
    tokens: Tokens
    seed: int
    params: SamplingParams
    remaining: int


@dataclass(frozen=True)
class Load:
    """What a controller may weigh.

    running, waiting   branches
    context_tokens     tokens the branches of this round attend to, summed
    spare_rows         draft nodes that fit this round without anybody being preempted
    """

    running: int
    waiting: int
    context_tokens: int
    spare_rows: int


@dataclass(frozen=True)
class Template:
    """A tree shape: node i is the `ranks[i]`-th child (0 = first) of node `parents[i]`. Nodes come in order of worth,
    so the first n are a template too.

    >>> Template.chain(3)
    Template(parents=(-1, 0, 1), ranks=(0, 0, 0))
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, int]] = set()
        for i, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not (-1 <= parent < i and rank >= 0 and (rank == 0 or (parent, rank - 1) in seen)):
                raise ValueError(f"node {i} of a template comes before its parent or its elder sibling")
            if (parent, rank) in seen:
                raise ValueError(f"node {i} of a template repeats child {rank} of node {parent}")
            seen.add((parent, rank))

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def chain(cls, length: int) -> Template:
        """One path."""
        return cls(tuple(range(-1, length - 1)), (0,) * length)


@dataclass(frozen=True)
class Price:
    """What a round takes: `round_seconds` without drafts, `row_seconds` more for each draft node."""

    round_seconds: float
    row_seconds: float

    def worth(self, reach_N: Any, branches: int) -> int:
        """How many of the nodes, likeliest first, to feed: as many as raise expected tokens per second (DESIGN D4).

        A round commits one token per branch and, in expectation, the sum of its nodes' chances `reach`, which are
        given in falling order.

        >>> Price(1.0, 0.2).worth(np.array([0.9, 0.5, 0.1]), branches=1)     # 1.9/1.2, 2.4/1.4, 2.5/1.6
        2
        """
        tokens = branches + np.concatenate([[0.0], np.cumsum(reach_N)])
        seconds = self.round_seconds + self.row_seconds * np.arange(len(reach_N) + 1)
        return int(np.argmax(tokens / np.maximum(seconds, 1e-12)))

    def floor(self, branches: int) -> float:
        """A node less likely than this cannot earn its row: plain decoding's is the lowest rate worth having."""
        return min(0.9, branches / max(self.round_seconds, 1e-12) * self.row_seconds)


@dataclass(frozen=True)
class Plan:
    """How much to guess this round.

    nodes      at most so many for each branch
    total      at most so many over all branches
    price      take no more nodes than are worth it; None where they are free
    template   fill this shape instead of growing where acceptance is likeliest; `nodes` cut it per branch
    learn      whether the drafter is told what came of the round
    """

    nodes: tuple[int, ...]
    total: int
    price: Price | None = None
    template: Template | None = None
    learn: bool = True


@dataclass(frozen=True)
class Feedback:
    """What the target said about one branch in one round, for *every* fed row, rejected ones too.

    Row 0 is the last committed token, row `1 + i` is draft node `i`. `accepted` are the draft nodes kept,
    in path order; the branch is as it was before. `topk_ids` and `topk_logprobs` are `[1 + len(draft), k]`
    arrays of the target's own (temperature 1) distribution after each row, or None when `feedback_k` is 0.
    """

    branch: Branch
    draft: Draft
    accepted: tuple[int, ...]
    topk_ids: Any = None
    topk_logprobs: Any = None


@dataclass(frozen=True)
class RoundCost:
    """What a round took in which nobody was refilling: `rows` fed for `branches`, in `seconds`, drafting included."""

    branches: int
    rows: int
    context_tokens: int
    seconds: float


class Drafter(Protocol):
    """Guesses what comes next. A guess may cost time but never changes the output."""

    @property
    def feedback_k(self) -> int:
        """How many of the target's top tokens `observe` wants for every row; 0 = none."""
        ...

    def propose(self, branches: Sequence[Branch], plan: Plan) -> list[Draft]:
        """One draft per branch, within the plan."""
        ...

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Learn from a finished round. *Mutates* the drafter only."""
        ...


class Controller(Protocol):
    """Decides how much is guessed."""

    @property
    def fills_template(self) -> bool:
        """Whether its plans carry a template. If not, nodes are kept by their chances, which not every draw allows."""
        ...

    def plan(self, branches: Sequence[Branch], load: Load) -> Plan:
        """What drafting may use this round; all zeros is plain decoding."""
        ...

    def plain_seconds(self, branches: int, context_tokens: int) -> float:
        """What it believes a round without drafts takes; 0 if it has no idea."""
        ...

    def observe(self, feedback: Sequence[Feedback], cost: RoundCost | None) -> None:
        """Learn from a finished round; `cost` is None when prompts were filled in it. *Mutates* the controller only."""
        ...
