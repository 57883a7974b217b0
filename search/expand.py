"""Ask for continuations of nodes, score them, attach them: the one place where search calls a model."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from decoding.core import Generation, GenerationRequest, SamplingParams, Spent, Tokens
from search.base import Resources
from search.ledger import Ledger
from search.seeds import derive_seed
from search.steps import split_steps
from search.tree import SearchTree, Step

log = logging.getLogger(__name__)


class Expander:
    """One search's hands: grows its tree, keeps its account. Made at the start of a run, gone at its end.

    Every node has a seed derived from the numbers of the siblings on its path, so what a branch becomes
    depends neither on the batch nor on the order in which other branches finish.
    """

    def __init__(self, root: Tokens, resources: Resources) -> None:
        self.tree = SearchTree(root)
        self.resources = resources
        self._ledger = Ledger(resources.budget)
        self._turn = asyncio.Lock()
        self._seeds = {SearchTree.ROOT: resources.seed}
        self._asked: Counter[int] = Counter()
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

    async def _grow(self, parents: Sequence[int], sampling: SamplingParams, *, one_step: bool) -> list[int]:
        seeds = [self._next_seed(parent) for parent in parents]
        if not self._ledger.one_at_a_time:
            return await self._waves(parents, seeds, sampling, one_step)
        async with self._turn:
            return await self._waves(parents, seeds, sampling, one_step)

    async def _waves(
        self, parents: Sequence[int], seeds: Sequence[int], sampling: SamplingParams, one_step: bool
    ) -> list[int]:
        """Send what the budget affords, attach and score it, then see what it affords next."""
        leaves: list[int] = []
        while len(leaves) < len(parents):
            limits = self._ledger.grant(len(parents) - len(leaves), max_tokens=sampling.max_tokens)
            if not limits:
                self._refused = True
                break
            wave = slice(len(leaves), len(leaves) + len(limits))
            requests = self._requests(parents[wave], seeds[wave], limits, sampling, one_step)
            generations = await self.resources.engine.generate(requests)
            for limit, request, generation in zip(limits, requests, generations, strict=True):
                self._account(generation, cut=request.params.max_tokens == limit < sampling.max_tokens)
            wave_leaves = [
                self._attach(parent, seed, generation, sampling, one_step)
                for parent, seed, generation in zip(parents[wave], seeds[wave], generations, strict=True)
            ]
            await self._score([leaf for leaf, parent in zip(wave_leaves, parents[wave], strict=True) if leaf != parent])
            leaves += wave_leaves
        return leaves

    def _next_seed(self, parent: int) -> int:
        number = self._asked[parent]
        self._asked[parent] += 1
        return derive_seed(self._seeds[parent], number)

    def _requests(
        self,
        parents: Sequence[int],
        seeds: Sequence[int],
        limits: Sequence[int],
        sampling: SamplingParams,
        one_step: bool,
    ) -> list[GenerationRequest]:
        stop = (*sampling.stop, self.resources.delimiter) if one_step else sampling.stop
        return [
            GenerationRequest(
                prefix=self.tree.tokens(parent),
                params=replace(sampling, stop=stop, max_tokens=min(limit, self._room(parent))),
                seed=seed,
                group=self.resources.group,
                deadline=self._ledger.deadline,
            )
            for parent, seed, limit in zip(parents, seeds, limits, strict=True)
        ]

    def _room(self, parent: int) -> int:
        """Tokens that still fit the model's window after this node; at least one, for the engine to refuse."""
        window = self.resources.window
        return sys.maxsize if window is None else max(1, window - len(self.tree.tokens(parent)))

    def _account(self, generation: Generation, *, cut: bool) -> None:
        """Charge what the engine reports, and never less than what is there to see."""
        seen = generation.spent
        self._ledger.charge(
            replace(seen, calls=max(seen.calls, 1), tokens=max(seen.tokens, len(generation.tokens)), seconds=0.0)
        )
        self._refused |= generation.finish == "deadline" or (cut and generation.finish == "length")

    def _attach(self, parent: int, seed: int, generation: Generation, sampling: SamplingParams, one_step: bool) -> int:
        """The last node of the chain a generation became; `parent` itself if it is empty."""
        decode, delimiter = self.resources.decode, self.resources.delimiter
        steps = split_steps(generation.tokens, generation.logprobs, decode, delimiter)
        node = parent
        for i, step in enumerate(steps):
            last = i == len(steps) - 1
            grows = not last or (one_step and generation.finish == "stop" and self._can_grow(step, sampling))
            node = self.tree.add(node, step, finish=None if grows else generation.finish)
            self._seeds[node] = derive_seed(seed, "step", i)
        return node

    def _can_grow(self, step: Step, sampling: SamplingParams) -> bool:
        """True if it was the delimiter that ended this step, and not a stop the caller asked for."""
        if step.tokens[-1] in sampling.stop_token_ids or any(stop in step.text for stop in sampling.stop):
            return False
        return self.resources.delimiter in step.text

    async def _score(self, leaves: Sequence[int]) -> None:
        """Give the paths to the scorer in one call and keep the scores of the steps that had none."""
        if self.resources.scorer is None or not leaves:
            return
        paths = [self.tree.steps(leaf) for leaf in leaves]
        scored = await self.resources.scorer.score(paths)
        self._ledger.charge(replace(scored.spent, seconds=0.0))
        if len(scored.scores) != len(paths):
            raise ValueError(f"the scorer was given {len(paths)} paths and returned scores for {len(scored.scores)}")
        for leaf, scores in zip(leaves, scored.scores, strict=True):
            self._keep(self.tree.path(leaf), scores)

    def _keep(self, path: Sequence[int], scores: Sequence[float] | None) -> None:
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
