"""Ask for continuations of nodes, score them, attach them: the one place where search calls a model."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from decoding.core import Generation, GenerationRequest, SamplingParams, Spent, Tokens, Vector
from search.budget import Ledger
from search.scoring import Scored, ScoreQueue
from search.seeds import derive_seed
from search.selection import Selection
from search.steps import signed, split_steps
from search.strategy import Resources, Written
from search.tree import SearchTree, Step

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Grown:
    """What one request became: its steps, and the scores of the path that ends with them."""

    generation: Generation
    steps: list[Step]
    scored: Scored | None


@dataclass(frozen=True)
class Asked:
    """One continuation under way. `limit` is what the budget granted it."""

    parent: int
    seed: int
    limit: int
    request: GenerationRequest
    task: asyncio.Task[Grown]


@dataclass(frozen=True)
class Growth:
    """Continuations that were asked for together and are not in the tree yet; empty if the budget grants none."""

    asked: list[Asked]
    sampling: SamplingParams
    one_step: bool

    def __len__(self) -> int:
        return len(self.asked)


class Expander:
    """One search's hands: grows its tree, keeps its account. Made at the start of a run, gone at its end.

    Every node has a seed derived from the numbers of the siblings on its path, so what a branch becomes depends
    neither on the batch nor on the order in which other branches finish. A branch is scored as soon as it is written,
    while others are still being written; it is attached when it is collected, so that the tree does not depend on
    timing either.

    selections   the decisions so far, for whoever wants to see how the tree came about
    hidden       per node, the hidden state from which its step's last token was chosen; with `embed=True`, where the
                 engine can tell
    """

    def __init__(self, root: Tokens, resources: Resources, *, embed: bool = False) -> None:
        self.tree = SearchTree(root)
        self.resources = resources
        self.selections: list[Selection] = []
        self.hidden: dict[int, Vector] = {}
        self._embed = embed
        self._ledger = Ledger(resources.budget)
        self._scoring = ScoreQueue(resources.scorer, resources.scorer_timeout) if resources.scorer else None
        self._turn = asyncio.Lock()
        self._seeds = {SearchTree.ROOT: resources.seed}
        self._children: Counter[int] = Counter()
        self._under_way: set[asyncio.Task[Grown]] = set()
        self._refused = False

    @property
    def spent(self) -> Spent:
        """What this search has used so far."""
        return self._ledger.spent

    @property
    def stopped(self) -> Literal["done", "budget"]:
        """`budget` once a request was refused or cut short by the budget."""
        return "budget" if self._refused else "done"

    async def solutions(self, parents: Sequence[int], sampling: SamplingParams) -> list[int]:
        """Continue each parent to the end of its solution; the leaf of every chain, in order of `parents`.

        Shorter than `parents` when the budget ran out, down to empty. *Mutates* the tree and the account.
        Raises: what the engine and the scorer raise.
        """
        return await self._grow(parents, sampling, one_step=False)

    async def steps(self, parents: Sequence[int], sampling: SamplingParams) -> list[int]:
        """Continue each parent by one step; `max_tokens` limits the step. Otherwise as `solutions`.

        A node whose step ends with the delimiter has `finish` None: it can grow.
        """
        return await self._grow(parents, sampling, one_step=True)

    def launch(self, parents: Sequence[int], sampling: SamplingParams, *, one_step: bool) -> Growth:
        """Start as many of these continuations as the budget affords now, the first ones first, and do not wait.

        None may be afforded now and some later, when others have turned out shorter than they might have been.
        *Mutates* the account, not the tree. Every growth must be collected, or `cancel` called.
        """
        under_way = self._ledger.under_way
        limits = self._ledger.grant(len(parents), max_tokens=sampling.max_tokens)
        if not limits and not under_way:
            self._refused = True
        asked = [self._ask(parent, limit, sampling, one_step) for parent, limit in zip(parents, limits, strict=False)]
        return Growth(asked, sampling, one_step)

    def fell_short(self) -> None:
        """Says that continuations which the budget did not grant will not be asked for again. *Mutates*."""
        self._refused = True

    async def collect(self, growth: Growth) -> list[int]:
        """Wait for these continuations and attach them, in the order they were asked for; their leaves.

        A continuation of no tokens is no node: its leaf is its parent. *Mutates* the tree and the account.
        Raises: what the engine and the scorer raise, after cancelling all that is under way.
        """
        try:
            grown = await asyncio.gather(*(asked.task for asked in growth.asked))
        except BaseException:
            self.cancel()
            raise
        return [self._attach(asked, one, growth) for asked, one in zip(growth.asked, grown, strict=True)]

    def cancel(self) -> None:
        """Drop what is under way; harmless when nothing is."""
        for task in self._under_way:
            task.cancel()

    def _forget(self, task: asyncio.Task[Grown]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # an error is raised where it is waited for; where nobody does, another one was before it

    async def _grow(self, parents: Sequence[int], sampling: SamplingParams, *, one_step: bool) -> list[int]:
        if not self._ledger.one_at_a_time:
            return await self.collect(self.launch(parents, sampling, one_step=one_step))
        async with self._turn:  # what one wave may use depends on what the wave before it really used
            leaves: list[int] = []
            while len(leaves) < len(parents):
                growth = self.launch(parents[len(leaves) :], sampling, one_step=one_step)
                if not growth:
                    break
                leaves += await self.collect(growth)
            return leaves

    def _ask(self, parent: int, limit: int, sampling: SamplingParams, one_step: bool) -> Asked:
        seed = derive_seed(self._seeds[parent], self._children[parent])
        self._children[parent] += 1
        stop = (*sampling.stop, self.resources.delimiter) if one_step else sampling.stop
        request = GenerationRequest(
            prefix=self.tree.tokens(parent),
            params=replace(sampling, stop=stop, max_tokens=min(limit, self._room(parent))),
            seed=seed,
            group=self.resources.group,
            deadline=self._ledger.deadline,
            hidden=self._embed,
        )
        task = asyncio.create_task(self._write(request, self.tree.steps(parent)))
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        return Asked(parent, seed, limit, request, task)

    def _room(self, parent: int) -> int:
        """Tokens that still fit the model's window after this node; at least one, for the engine to refuse."""
        window = self.resources.window
        return sys.maxsize if window is None else max(1, window - len(self.tree.tokens(parent)))

    async def _write(self, request: GenerationRequest, path: list[Step]) -> Grown:
        """Continue a path and score what it became."""
        (generation,) = await self.resources.engine.generate([request])
        decode, delimiter = self.resources.decode, self.resources.delimiter
        steps = signed(split_steps(generation.tokens, generation.logprobs, decode, delimiter), generation.authors)
        scored = await self._scoring.score([*path, *steps]) if self._scoring and steps else None
        if self.resources.watch and steps:
            self.resources.watch(Written(steps, scored.scores[-1] if scored and scored.scores else None))
        return Grown(generation, steps, scored)

    def _attach(self, asked: Asked, grown: Grown, growth: Growth) -> int:
        """The last node of the chain a generation became; the parent itself if it is empty."""
        self._account(asked, grown, growth.sampling)
        node, finish = asked.parent, grown.generation.finish
        for i, step in enumerate(grown.steps):
            last = i == len(grown.steps) - 1
            grows = not last or (growth.one_step and finish == "stop" and self._can_grow(step, growth.sampling))
            node = self.tree.add(node, step, finish=None if grows else finish)
            self._seeds[node] = derive_seed(asked.seed, "step", i)
        if grown.generation.hidden is not None and len(grown.steps) == 1:
            self.hidden[node] = grown.generation.hidden
        if grown.scored is not None:
            self._keep(self.tree.path(node), grown.scored.scores)
        return node

    def _account(self, asked: Asked, grown: Grown, sampling: SamplingParams) -> None:
        """Charge what the engine reports; where it reports nothing, what is there to see."""
        seen, finish = grown.generation.spent, grown.generation.finish
        tokens = seen.tokens or len(grown.generation.tokens)
        self._ledger.settle(asked.limit, replace(seen, calls=max(seen.calls, 1), tokens=tokens, seconds=0.0))
        if grown.scored is not None:
            self._ledger.charge(replace(grown.scored.spent, seconds=0.0))
        cut = asked.request.params.max_tokens == asked.limit < sampling.max_tokens
        self._refused |= finish == "deadline" or (cut and finish == "length")

    def _can_grow(self, step: Step, sampling: SamplingParams) -> bool:
        """True if it was the delimiter that ended this step, and not a stop the caller asked for."""
        if step.tokens[-1] in sampling.stop_token_ids or any(stop in step.text for stop in sampling.stop):
            return False
        return self.resources.delimiter in step.text

    def _keep(self, path: Sequence[int], scores: Sequence[float] | None) -> None:
        """Note the scores of the steps that had none."""
        if scores is None:
            return
        if len(scores) != len(path):
            raise ValueError(f"the scorer returned {len(scores)} scores for a path of {len(path)} steps")
        if not all(math.isfinite(score) for score in scores):
            log.warning("the scorer returned %s; this path counts as not scored", list(scores))
            return
        for index, score in zip(path, scores, strict=True):
            node = self.tree.nodes[index]
            node.score = float(score) if node.score is None else node.score
