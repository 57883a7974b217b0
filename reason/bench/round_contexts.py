"""Makes the requests and drafts of one round: branches of real lengths whose prefixes are in a real prefix cache."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.kv.kv_cache import KVCache
from decoding.kv.slots import SlotPool
from decoding.request import Request
from decoding.speculation.draft import Draft
from decoding.stopping import StopRule

_MAX_TOKEN = 255  # every model here has it
_MAX_CHILDREN = 4  # of a node of a drawn draft
_FEWEST_SLOTS = 1 << 14  # free ones beside those of the contexts, for drafts
NO_STOP = StopRule(lambda ids: "", frozenset())


@dataclass(frozen=True)
class BranchContext:
    """One branch: its problem, the cached prefix that it continues, and how many tokens it has generated since."""

    problem: int
    prefix: Tokens
    num_generated: int

    def __len__(self) -> int:
        return len(self.prefix) + self.num_generated


class ContextSource(Protocol):
    """Draws the contexts of a round."""

    @property
    def name(self) -> str: ...
    @property
    def branches(self) -> int: ...
    def draw_contexts(self, rng: np.random.Generator) -> list[BranchContext]: ...


@dataclass(frozen=True)
class BestOfNContexts:
    """Branches of one prompt, each with a long tail of tokens that it generated alone."""

    branches: int
    prompt: int = 512
    generated: int = 3584
    name: str = "best of n"

    def draw_contexts(self, rng: np.random.Generator) -> list[BranchContext]:
        """Returns contexts whose tails differ by at most a tenth."""
        prompt = _draw_tokens(rng, self.prompt)
        tails = rng.integers(self.generated - self.generated // 10, self.generated + 1, self.branches)
        return [BranchContext(0, prompt, int(tail)) for tail in tails]


@dataclass(frozen=True)
class SearchContexts:
    """Branches of several problems in the middle of a step, with two levels of sharing.

    All branches of a problem share its prompt, about `siblings` of them what was written before the step as well.
    Lengths are drawn evenly from ranges.
    """

    branches: int
    problems: int = 8
    siblings: int = 4
    prompt: tuple[int, int] = (100, 400)
    written: tuple[int, int] = (200, 1400)
    step: tuple[int, int] = (20, 400)
    name: str = "search"

    def draw_contexts(self, rng: np.random.Generator) -> list[BranchContext]:
        """Returns contexts, those of a problem next to each other."""
        contexts: list[BranchContext] = []
        sizes = [len(part) for part in np.array_split(np.arange(self.branches), min(self.problems, self.branches))]
        for problem, size in enumerate(sizes):
            prompt = _draw_tokens(rng, int(rng.integers(*self.prompt)))
            for first in range(0, size, self.siblings):
                prefix = prompt + _draw_tokens(rng, int(rng.integers(*self.written)))
                for _ in range(min(self.siblings, size - first)):
                    contexts.append(BranchContext(problem, prefix, int(rng.integers(*self.step))))
        return contexts


def _draw_tokens(rng: np.random.Generator, count: int) -> Tokens:
    return tuple(rng.integers(1, _MAX_TOKEN, count).tolist())


def draw_drafts(branches: int, nodes: int, rng: np.random.Generator) -> list[Draft]:
    """Returns the drafts that best-first selection gives: `nodes` a branch on average, few where little is likely.

    Each branch is drawn with a probability that its likeliest next token is right. The second is right with that share
    of the rest, and so on; the nodes of all branches are then taken by falling path probability.
    """
    confidences = rng.uniform(0.3, 0.95, branches)
    trees: list[list[tuple[int, int]]] = [[] for _ in range(branches)]  # parent, rank
    queue = [(-float(confidences[b]), b, -1, 0, 1.0) for b in range(branches)]
    heapq.heapify(queue)
    for _ in range(branches * nodes):
        negative, branch, parent, rank, above = heapq.heappop(queue)
        confidence, tree = float(confidences[branch]), trees[branch]
        tree.append((parent, rank))
        if rank + 1 < _MAX_CHILDREN:
            share = above * confidence * (1 - confidence) ** (rank + 1)
            heapq.heappush(queue, (-share, branch, parent, rank + 1, above))
        heapq.heappush(queue, (negative * confidence, branch, len(tree) - 1, 0, -negative))
    # token ids above 0: the meta device samples token 0 everywhere, so no node is accepted
    return [Draft(tuple(rank + 1 for _, rank in tree), tuple(parent for parent, _ in tree)) for tree in trees]


def open_cache(contexts: Sequence[BranchContext], drafted: int = 0) -> KVCache:
    """Returns an empty cache with room for contexts and drafts."""
    return KVCache(SlotPool(sum(map(len, contexts)) + drafted + _FEWEST_SLOTS))


def place_requests(contexts: Sequence[BranchContext], kv: KVCache, params: SamplingParams) -> list[Request]:
    """Returns running requests with these contexts, one token each still to be fed. *Mutates* the cache.

    Prefixes are inserted into the cache. Generated tokens have slots in the order in which a batch that grows by one
    token a branch takes them: those of one branch do not lie next to each other.
    """
    requests = []
    for number, context in enumerate(contexts):
        request = Request(
            GenerationRequest(prefix=context.prefix, params=params, seed=number, group=str(context.problem))
        )
        request.arrival, request.num_cached_prompt = number, 0
        kv.acquire(request, kv.match_prefix(request))
        request.append_slots(kv.allocate(request.num_uncomputed))
        kv.insert(request)
        requests.append(request)
    lengths = np.array([context.num_generated for context in contexts])
    owners = np.repeat(np.arange(len(contexts)), lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    slots = kv.allocate(len(owners))
    slots_in_order = np.empty_like(slots)
    slots_in_order[np.lexsort((owners, steps))] = slots
    for request, own_slots in zip(requests, np.split(slots_in_order, np.cumsum(lengths)[:-1]), strict=True):
        # all but the last generated token have KV
        request.commit_tokens([1 + request.arrival % _MAX_TOKEN] * len(own_slots), [0.0] * len(own_slots), NO_STOP)
        request.append_slots(own_slots[:-1])
        kv.pool.free(own_slots[-1:])
    return requests
