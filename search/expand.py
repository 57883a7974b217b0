"""Requests continuations of nodes, scores them and attaches them to the tree; only this module calls an engine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from decoding.core import FinishReason, GenerationRequest, SamplingParams, Tokens, Usage, Vector
from search.budget import BudgetTracker
from search.continuation import Continuation, ContinuationWriter, OpenThought
from search.selection import Selection
from search.strategy import Resources
from search.tree import SearchTree, Step

log = logging.getLogger(__name__)


def derive_seed(*parts: int | str) -> int:
    """Derives a 63-bit seed from ints and strings; order and type matter.

    >>> derive_seed(0, "p1", 3) == derive_seed(0, "p1", 3) != derive_seed(0, "p1", 4)
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class PendingExpansion:
    """One continuation that is being generated; `limit` is the number of tokens reserved for it."""

    parent: int
    seed: int
    limit: int
    request: GenerationRequest
    task: asyncio.Task[Continuation]


@dataclass(frozen=True)
class ExpansionBatch:
    """Continuations that were started together and are not in the tree yet; empty if the budget affords none."""

    pending: list[PendingExpansion]
    sampling: SamplingParams

    def __len__(self) -> int:
        return len(self.pending)


class Expander:
    """Expands the tree of one search and tracks its token budget.

    Each node has a seed that is derived from the positions among siblings on its path. So a branch depends neither on
    the batch nor on the order in which other branches finish. A branch is scored as soon as it is generated, while
    others still run; it is attached when its batch is collected. So the tree does not depend on timing either.

    selections     decisions of the strategy so far, in order
    hidden_states  per node, the hidden state from which the last token of its step was chosen; only with `embed=True`
                   and an engine that returns it
    """

    def __init__(self, root: Tokens, resources: Resources, *, embed: bool = False) -> None:
        self.tree = SearchTree(root)
        self.resources = resources
        self.selections: list[Selection] = []
        self.hidden_states: dict[int, Vector] = {}
        self._writer = ContinuationWriter(resources)
        self._embed = embed
        self._budget = BudgetTracker(resources.budget)
        self._wave_lock = asyncio.Lock()
        self._seeds = {SearchTree.ROOT: resources.seed}
        self._num_children: Counter[int] = Counter()
        self._first_nodes: dict[tuple[int, Tokens, str | None], int] = {}  # (first parent, tokens, model) -> first node
        self._first_of = {SearchTree.ROOT: SearchTree.ROOT}  # node -> the first node with the same path
        self._tasks: set[asyncio.Task[Continuation]] = set()
        self._budget_exhausted = False

    @property
    def usage(self) -> Usage:
        """Usage of this search so far."""
        return self._budget.usage

    @property
    def stop_reason(self) -> Literal["done", "budget"]:
        """`budget` once the budget refused a request or cut one short."""
        return "budget" if self._budget_exhausted else "done"

    async def sample_continuations(
        self, parents: Sequence[int], sampling: SamplingParams, *, one_step: bool, path_tokens: int | None = None
    ) -> list[int]:
        """Continues each parent to the end of its solution, or by one step; returns the leaves in order of `parents`.

        With `one_step`, `max_tokens` limits the step and `path_tokens` its path. A node whose step is complete, or goes
        on in the next, has `finish` None: it can be continued. The list is shorter than `parents`, down to empty, if
        the budget ran out. *Mutates* the tree and the usage. Raises: what the engine and the scorer raise.
        """
        if not self._budget.is_sequential:
            batch = self.start_batch(parents, sampling, one_step=one_step, path_tokens=path_tokens)
            return await self.collect_batch(batch)
        # Under a limit of tokens, the size of a wave depends on the usage of the wave before it. Waves of concurrent
        # calls that interleaved would make the tree depend on timing.
        async with self._wave_lock:
            leaves: list[int] = []
            while len(leaves) < len(parents):
                rest = parents[len(leaves) :]
                batch = self.start_batch(rest, sampling, one_step=one_step, path_tokens=path_tokens)
                if not batch:
                    break
                leaves += await self.collect_batch(batch)
            return leaves

    def start_batch(
        self, parents: Sequence[int], sampling: SamplingParams, *, one_step: bool, path_tokens: int | None = None
    ) -> ExpansionBatch:
        """Starts as many of these continuations as the budget affords now, the first ones first, without waiting.

        More may be affordable later, when pending requests turn out shorter than their reservation. *Mutates* the
        budget, not the tree. Each batch must be passed to `collect_batch`, or `cancel_pending` must be called.
        """
        num_reserved = self._budget.num_reserved
        limits = self._budget.reserve(len(parents), max_tokens=sampling.max_tokens)
        if not limits and not num_reserved:  # no commit can free any
            self._budget_exhausted = True
        pending = [
            self._start_request(parent, limit, sampling, one_step, path_tokens)
            for parent, limit in zip(parents, limits, strict=False)
        ]
        return ExpansionBatch(pending, sampling)

    def mark_budget_exhausted(self) -> None:
        """Records that continuations which the budget refused will not be requested again. *Mutates*."""
        self._budget_exhausted = True

    async def collect_batch(self, batch: ExpansionBatch) -> list[int]:
        """Waits for a batch and attaches its continuations in the order of its parents; returns their leaves.

        A continuation without tokens adds no node: its leaf is its parent. *Mutates* the tree and the usage.
        Raises: what the engine and the scorer raise, after cancelling all pending requests of this search.
        """
        try:
            results = await asyncio.gather(*(expansion.task for expansion in batch.pending))
        except BaseException:
            self.cancel_pending()
            raise
        # Attaching in the order of the parents, not of completion, keeps node numbers independent of timing.
        return [
            self._attach_steps(expansion, result, batch)
            for expansion, result in zip(batch.pending, results, strict=True)
        ]

    def cancel_pending(self) -> None:
        """Cancels all pending requests of this search, if there are any."""
        for task in self._tasks:
            task.cancel()

    def _discard_task(self, task: asyncio.Task[Continuation]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Retrieving the exception avoids asyncio's warning for batches that are never collected; `gather` raises
            # the first error of a collected batch by itself.
            task.exception()

    def _start_request(
        self, parent: int, limit: int, sampling: SamplingParams, one_step: bool, path_tokens: int | None
    ) -> PendingExpansion:
        # Counted when the request starts, not when it ends: siblings get their seeds in the order of the calls.
        seed = derive_seed(self._seeds[parent], self._num_children[parent])
        self._num_children[parent] += 1
        room = min(self._remaining_context(parent), self._remaining_path(parent, path_tokens))
        request = GenerationRequest(
            prefix=self.tree.prefix_tokens(parent),
            params=replace(sampling, max_tokens=min(limit, room)),
            seed=seed,
            group=self.resources.group,
            deadline=self._budget.deadline,
            hidden=self._embed,
        )
        may_go_on = sampling.max_tokens <= min(limit, room - 1)  # no other limit cuts the step
        # what is left of the solution: a step is only a part of it, unless the budget has no more than this
        left = min(room, limit) if limit < sampling.max_tokens or not one_step else room
        thought = self._find_open_thought(parent, left)
        path = self.tree.path_steps(parent)
        task = asyncio.create_task(
            self._writer.write_step(request, path, thought, may_go_on=may_go_on)
            if one_step
            else self._writer.write_solution(request, path, thought)
        )
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)
        return PendingExpansion(parent, seed, limit, request, task)

    def _find_open_thought(self, parent: int, room: int) -> OpenThought | None:
        """Returns the thought in which a continuation of this node begins; its solution has `room` tokens left."""
        budget = self.resources.thought
        if budget is None:
            return None
        path_text = self.tree.path_text(parent)
        if not budget.is_open(path_text):
            return None
        return OpenThought(budget, budget.remaining(self._count_path_tokens(parent), room), path_text)

    def _count_path_tokens(self, node: int) -> int:
        return 0 if node == SearchTree.ROOT else self.tree.nodes[node].num_path_tokens

    def _remaining_context(self, parent: int) -> int:
        """Tokens that fit the model's context window after this node; at least 1, so that the engine refuses it."""
        window = self.resources.context_window
        used = len(self.tree.root) + self._count_path_tokens(parent)
        return sys.maxsize if window is None else max(1, window - used)

    def _remaining_path(self, parent: int, path_tokens: int | None) -> int:
        """Tokens that a path may still have after this node; at least 1."""
        return sys.maxsize if path_tokens is None else max(1, path_tokens - self._count_path_tokens(parent))

    def _attach_steps(self, expansion: PendingExpansion, result: Continuation, batch: ExpansionBatch) -> int:
        """Adds the steps of a generation as a chain below its parent; returns the last node, or the parent."""
        self._commit_usage(expansion, result, batch.sampling)
        node = expansion.parent
        finish = None if result.is_open else result.generation.finish
        for i, step in enumerate(result.steps):
            is_last = i == len(result.steps) - 1
            node = self._add_node(node, step, finish=finish if is_last else None)
            self._seeds[node] = derive_seed(expansion.seed, "step", i)
        # The hidden state belongs to the last token, so it can stand for a step only where that step is the only one.
        hidden = result.generation.hidden
        if hidden is not None and len(result.steps) == 1:
            self.hidden_states[node] = self.hidden_states.get(self._first_of[node], hidden)
        if result.path_scores is not None:
            self._store_scores(self.tree.path_nodes(node), result.path_scores.scores)
        return node

    def _add_node(self, parent: int, step: Step, finish: FinishReason | None) -> int:
        """Adds a node. Where its path is in the tree already, it has the log-probabilities, and later the score and the
        hidden state, of the first node with this path: computed in different batches, twins would differ in the last
        digits, and these would rank them."""
        key = (self._first_of[parent], step.tokens, step.model)
        if key in self._first_nodes:
            step = replace(step, logprobs=self.tree.nodes[self._first_nodes[key]].step.logprobs)
        node = self.tree.add_node(parent, step, finish=finish)
        self._first_of[node] = self._first_nodes.setdefault(key, node)
        return node

    def _commit_usage(self, expansion: PendingExpansion, result: Continuation, sampling: SamplingParams) -> None:
        """Adds the usage that the engine reports; where it reports none, one call and the tokens of the generation."""
        generation = result.generation
        reported, finish = generation.usage, generation.finish
        tokens = reported.tokens or len(generation.tokens)
        usage = replace(reported, calls=max(reported.calls, 1), tokens=tokens, seconds=0.0)
        self._budget.commit(expansion.limit, usage)
        if result.path_scores is not None:
            self._budget.add_usage(replace(result.path_scores.usage, seconds=0.0))
        # Cut short by the budget, not by the context window: the window limits `max_tokens` below the reservation.
        is_cut = expansion.request.params.max_tokens == expansion.limit < sampling.max_tokens
        self._budget_exhausted |= finish == "deadline" or (is_cut and finish == "length")

    def _store_scores(self, path: Sequence[int], scores: Sequence[float] | None) -> None:
        """Sets the scores of the nodes that have none; a node never changes its score."""
        if scores is None:
            return
        if len(scores) != len(path):
            raise ValueError(f"the scorer returned {len(scores)} scores for a path of {len(path)} steps")
        if not all(math.isfinite(score) for score in scores):
            log.warning("the scorer returned %s; this path counts as not scored", list(scores))
            return
        for index, score in zip(path, scores, strict=True):
            node, first_score = self.tree.nodes[index], self.tree.nodes[self._first_of[index]].score
            if node.score is None:
                node.score = float(score) if first_score is None else first_score
