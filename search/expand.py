"""Requests continuations of nodes, scores them and attaches them to the tree; only this module calls an engine."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from decoding.core import FinishReason, GenerationRequest, SamplingParams, Tokens, Usage, Vector
from search.budget import BudgetTracker
from search.continuation import Continuation, ContinuationWriter
from search.expansion_batch import ExpansionBatch, ParentPath, PendingExpansion, drop_task
from search.expansion_plan import ExpansionPlan, is_too_late, leave_out_probes, limit_tokens_of_each
from search.generations import limit_tokens
from search.same_paths import SamePaths
from search.seeds import BranchSeeds
from search.selection import Selection
from search.strategy import EarlierSamples, Resources, StepScores
from search.thought import NO_HISTORY, OpenThought, ThoughtBudget, ThoughtHistory
from search.tree import Context, SearchTree, Step

log = logging.getLogger(__name__)

_LONG_WAIT = 1.0  # seconds until errors of later branches are looked for, which takes a tenth of their other work here


class Expander:
    """Expands the tree of one search and tracks its token budget.

    A branch is scored as soon as it is generated, while others still run; it is attached when its batch is collected.
    So the tree does not depend on timing, as the seeds of branches do not (`search/seeds.py`).

    selections     decisions of the strategy so far, in order
    hidden_states  per node, the hidden state from which the last token of its step was chosen; only with `embed=True`
                   and an engine that returns it
    has_late_thoughts  whether the time limit ended a thought; unlike `stop_reason` that does not end the search
    """

    def __init__(self, root: Tokens, resources: Resources, *, embed: bool = False) -> None:
        self.tree = SearchTree(root)
        self.resources = resources
        self.selections: list[Selection] = []
        self.hidden_states: dict[int, Vector] = {}
        self._budget = BudgetTracker(resources.budget, resources.clock)
        self._writer = ContinuationWriter(resources, self._budget.thinking_time)
        self._embed = embed
        self._wave_lock = asyncio.Lock()
        self._seeds = BranchSeeds(resources.seed)
        self._same_paths = SamePaths(root)
        self._histories: dict[int, ThoughtHistory] = {}  # node -> what happened to its thought
        self._batches: set[ExpansionBatch] = set()  # that are being generated
        self._budget_exhausted = False
        self.has_late_thoughts = False

    @property
    def usage(self) -> Usage:
        """Usage of this search so far."""
        return self._budget.usage

    @property
    def stop_reason(self) -> Literal["done", "budget"]:
        """`budget` once the budget refused a request or cut one short."""
        return "budget" if self._budget_exhausted else "done"

    def continue_samples(self, earlier: EarlierSamples) -> None:
        """Goes on from solutions of the prompt that are there already; comes before all requests.

        Further solutions have the seeds that they would have without a break. Only the prompt can be continued:
        the seeds of earlier nodes are not known. *Mutates*; the earlier tree becomes that of this search.

        Raises: ValueError where they are solutions of another prompt.
        """
        if earlier.tree.root != self.tree.root:
            raise ValueError("the earlier solutions belong to another prompt; the run must start in a new folder")
        self.tree = earlier.tree
        self._seeds.skip_children(earlier.num_requests)
        self._budget.add_earlier(earlier.usage)
        for number, node in enumerate(self.tree.nodes):
            self._same_paths.add_node(number, node.parent, node.step)

    def add_context(self, context: Context) -> int:
        """Adds a context to the tree and returns its number, the parent of what is written behind it. *Mutates*."""
        number = self.tree.add_context(context)
        self._seeds.add_context(number, context.sources[0] if context.sources else SearchTree.ROOT)
        self._same_paths.add_context(number, self.tree.prefix_tokens(number))
        return number

    async def sample_continuations(
        self,
        parents: Sequence[int],
        sampling: SamplingParams,
        *,
        one_step: bool,
        path_tokens: int | None = None,
        pauses: bool = False,
        resources: Resources | None = None,
        is_enough: Callable[[int], bool] | None = None,
    ) -> list[int]:
        """Continues each parent to the end of its solution, or by one step; returns the leaves in order of `parents`.

        With `one_step`, `max_tokens` limits the step and `path_tokens` its path. A node whose step is complete, or goes
        on in the next, has `finish` None: it can be continued. So has, where it `pauses`, a solution that `max_tokens`
        cut; its thought is then ended only where the budget ends. `resources` replace those of the search for these
        continuations, but for the budget. The list is shorter than `parents`, down to empty, if the budget ran out, or
        if `is_enough` said so of one of its leaves: the continuations behind it are then cancelled, however far they
        are. *Mutates* the tree and the usage. Raises: what the engine and the scorer raise.
        """
        start = partial(
            self.start_batch,
            one_step=one_step,
            path_tokens=path_tokens,
            pauses=pauses,
            resources=resources,
            is_level=one_step,
        )
        decided = False

        def decide(leaf: int) -> bool:
            nonlocal decided
            decided = is_enough is not None and is_enough(leaf)
            return decided

        if not self._budget.is_sequential:
            return await self.collect_batch(start(parents, sampling), is_enough)
        # Under a limit of tokens, the size of a wave depends on the usage of the wave before it. Waves of concurrent
        # calls that interleaved would make the tree depend on timing.
        async with self._wave_lock:
            leaves: list[int] = []
            while len(leaves) < len(parents):
                rest = parents[len(leaves) :]
                batch = start(rest, sampling)
                if not batch:
                    break
                leaves += await self.collect_batch(batch, is_enough and decide)
                if decided:
                    break
            return leaves

    def start_batch(
        self,
        parents: Sequence[int],
        sampling: SamplingParams,
        *,
        one_step: bool,
        path_tokens: int | None = None,
        pauses: bool = False,
        resources: Resources | None = None,
        whole: bool = False,
        is_level: bool = False,
    ) -> ExpansionBatch:
        """Starts as many of these continuations as the budget affords now, the first ones first, without waiting.

        The arguments are those of `sample_continuations`, and `whole` as in `BudgetTracker.reserve`.
        `is_level` says that all paths of the search are in the batch.

        More may be affordable later, when pending requests turn out shorter than their reservation. *Mutates* the
        budget, not the tree. Each batch must be passed to `collect_batch`, or `cancel_pending` must be called.
        """
        thought, num_reserved = (resources or self.resources).thought, self._budget.num_reserved
        remaining = None if thought is None else self._budget.remaining_tokens
        limit, thought_tokens = limit_tokens_of_each(
            sampling.max_tokens, thought, remaining if one_step else None, len(parents)
        )
        limits: list[int] = []
        if thought is None or not is_too_late(self.tree, parents, thought, remaining, is_level=is_level):
            limits = self._budget.reserve(len(parents), max_tokens=limit, whole=whole)
        if not limits and not num_reserved:  # no commit can free any
            self._budget_exhausted = True
        reserved = limits[0] if limits else limit  # the same for all of them
        plan = ExpansionPlan(
            sampling=sampling,
            writer=self._writer if resources is None else ContinuationWriter(resources, self._budget.thinking_time),
            thought=thought,
            one_step=one_step,
            path_tokens=path_tokens,
            pauses=pauses,
            reserved=reserved,
            limit=leave_out_probes(reserved, sampling.max_tokens, thought, thought_tokens),
            thought_tokens=thought_tokens,
            is_level=is_level,
            whole=whole,
        )
        started, refused = parents[: len(limits)], parents[len(limits) :]
        # read once for all its continuations: a parent has several, the prompt all of a best-of-N
        paths = {parent: self._read_path(parent, plan) for parent in dict.fromkeys(started)}
        batch = ExpansionBatch([self._start_request(paths[parent], plan) for parent in started], plan, refused)
        if batch:
            self._batches.add(batch)
        return batch

    def _read_path(self, parent: int, plan: ExpansionPlan) -> ParentPath:
        nodes = self.tree.path_nodes(parent)
        steps = [self.tree.nodes[node].step for node in nodes]
        prefix = self.tree.prefix_tokens(parent, steps)
        num_tokens = self.tree.nodes[parent].num_path_tokens if parent >= 0 else 0
        room = min(self._remaining_context(prefix), self._remaining_path(num_tokens, plan.path_tokens))
        request = GenerationRequest(
            prefix=prefix,
            params=limit_tokens(plan.sampling, min(plan.limit, room)),
            seed=0,
            group=self.resources.group,
            deadline=self._budget.deadline,
            hidden=self._embed,
            num_top=self.resources.num_top,
            question_length=self.tree.count_question_tokens(parent),
        )
        may_go_on = plan.sampling.max_tokens <= min(plan.limit, room - 1)
        return ParentPath(parent, nodes, steps, num_tokens, room, request, may_go_on)

    async def collect_batch(self, batch: ExpansionBatch, is_enough: Callable[[int], bool] | None = None) -> list[int]:
        """Waits for a batch and attaches its continuations in the order of its parents; returns their leaves.

        A continuation without tokens adds no node: its leaf is its parent. `is_enough` as in `sample_continuations`.
        *Mutates* the tree and the usage. Raises: what the engine and the scorer raise, after cancelling all pending
        requests of this search. That of a later continuation comes within a second, or in its turn with `is_enough`.
        """
        alarm: asyncio.TimerHandle | None = None
        try:
            if is_enough is not None:
                return await self._collect_until(batch, is_enough)
            if len(batch.pending) > 1:
                alarm = asyncio.get_running_loop().call_later(_LONG_WAIT, batch.end_at_error)
            results: list[Continuation] = []
            # one after the other: what is there already costs no turn of the event loop, as it would in a gather
            for expansion in batch.pending:
                results.append(result := await expansion.task)
                if result.scoring is not None:
                    await result.scoring
        except BaseException as error:
            self._drop_batches()
            if not isinstance(error, asyncio.CancelledError):
                raise
            if batch.error is not None:  # for which the rest was cancelled
                raise batch.error from None
            await asyncio.wait([expansion.task for expansion in batch.pending])  # nothing of the batch runs on
            raise
        finally:
            self._batches.discard(batch)
            if alarm is not None:
                alarm.cancel()
        # Attaching in the order of the parents, not of completion, keeps node numbers independent of timing.
        return [
            self._attach_steps(expansion, result, batch)
            for expansion, result in zip(batch.pending, results, strict=True)
        ]

    async def _collect_until(self, batch: ExpansionBatch, is_enough: Callable[[int], bool]) -> list[int]:
        """Collects a batch one by one. What decides is a beginning of it, in the order of its parents, so the result
        does not depend on which continuation is faster."""
        leaves: list[int] = []
        decided = False
        for expansion in batch.pending:
            if decided:
                drop_task(expansion.task)
                self._budget.commit(batch.plan.reserved, Usage(calls=1, cancelled=1))
                continue
            result = await expansion.task
            if result.scoring is not None:
                await result.scoring
            leaves.append(self._attach_steps(expansion, result, batch))
            decided = is_enough(leaves[-1])
        return leaves

    def cancel_pending(self) -> None:
        """Cancels all pending requests of this search, if there are any, and counts them. *Mutates* the usage."""
        for batch in self._drop_batches():
            for _ in batch.pending:
                self._budget.commit(batch.plan.reserved, Usage(calls=1, cancelled=1))

    def _drop_batches(self) -> list[ExpansionBatch]:
        dropped = list(self._batches)
        self._batches.clear()
        for batch in dropped:
            for expansion in batch.pending:
                drop_task(expansion.task)
        return dropped

    def _start_request(self, path: ParentPath, plan: ExpansionPlan) -> PendingExpansion:
        # Counted when the request starts, not when it ends: siblings get their seeds in the order of the calls.
        seed = self._seeds.next_child(path.parent)
        request = path.request.with_seed(seed)
        thought = None if plan.thought is None else self._find_open_thought(path, plan, plan.thought)
        task = asyncio.create_task(
            plan.writer.write_step(request, path.steps, thought, may_go_on=path.may_go_on)
            if plan.one_step
            else plan.writer.write_solution(request, path.steps, thought)
        )
        return PendingExpansion(path, seed, task)

    def _find_open_thought(self, path: ParentPath, plan: ExpansionPlan, budget: ThoughtBudget) -> OpenThought | None:
        """Returns the thought in which a continuation of this path begins; None where it begins in none."""
        if not budget.is_open(path.text):
            return None
        room = path.room
        if not plan.one_step or plan.limit < plan.sampling.max_tokens:
            room = min(room, plan.limit)  # else a step is only a part of what is left of the solution
        remaining = budget.remaining(path.num_tokens, room)
        if plan.thought_tokens is not None:
            remaining = min(remaining, plan.thought_tokens)
        if plan.pauses and path.may_go_on:
            remaining = max(remaining, plan.sampling.max_tokens + 1)
        return OpenThought(
            budget=budget,
            num_tokens=path.num_tokens,
            remaining=remaining,
            room=room,
            probe_tokens=plan.reserved - plan.limit,
            path_text=path.text,
            history=self._histories.get(path.parent, NO_HISTORY),
            time=self._budget.thinking_time if budget.answer_tokens else None,
            is_spare=path.parent == SearchTree.ROOT and self._seeds.count_children(path.parent) > 1,
        )

    def _remaining_context(self, prefix: Tokens) -> int:
        """Tokens that fit the model's context window behind a prefix; at least 1, so that the engine refuses it."""
        window = self.resources.context_window
        return sys.maxsize if window is None else max(1, window - len(prefix))

    @staticmethod
    def _remaining_path(num_tokens: int, path_tokens: int | None) -> int:
        """Tokens that a path may still have behind its first `num_tokens`; at least 1."""
        return sys.maxsize if path_tokens is None else max(1, path_tokens - num_tokens)

    def _attach_steps(self, expansion: PendingExpansion, result: Continuation, batch: ExpansionBatch) -> int:
        """Adds the steps of a generation as a chain below its parent; returns the last node, or the parent."""
        self._commit_usage(expansion.path, result, batch.plan)
        node = expansion.path.parent
        new: list[int] = []  # `list[int]()` would take ten times as long, for every branch and step
        is_paused = batch.plan.pauses and expansion.path.may_go_on and result.generation.finish == "length"
        finish = None if result.is_open or is_paused else result.generation.finish
        for i, step in enumerate(result.steps):
            is_last = i == len(result.steps) - 1
            node = self._add_node(node, step, finish=finish if is_last else None)
            new.append(node)
            self._seeds.add_step(node, expansion.seed, i)
            if result.history is not NO_HISTORY:
                self._histories[node] = result.history.until(self.tree.nodes[node].num_path_tokens)
        # The hidden state belongs to the last token, so it can stand for a step only where that step is the only one.
        hidden = result.generation.hidden
        if hidden is not None and len(result.steps) == 1:
            self.hidden_states[node] = self.hidden_states.get(self._same_paths.first_of(node), hidden)
        if result.scoring is not None:
            self._store_scores([*expansion.path.nodes, *new], result.scoring.result().scores)
        return node

    def _add_node(self, parent: int, step: Step, finish: FinishReason | None) -> int:
        """Adds a node; where its path is in the tree already, with the log-probabilities of the first node with it."""
        node = len(self.tree)
        first = self._same_paths.add_node(node, parent, step)
        if first != node:
            known = self.tree.nodes[first].step
            step = replace(step, logprobs=known.logprobs, confidences=known.confidences, entropies=known.entropies)
        return self.tree.add_node(parent, step, finish=finish)

    def _commit_usage(self, path: ParentPath, result: Continuation, plan: ExpansionPlan) -> None:
        """Adds the usage that the engine reports; where it reports none, one call and the tokens of the generation."""
        generation = result.generation
        reported, finish = generation.usage, generation.finish
        tokens = reported.tokens or len(generation.tokens)
        usage = reported
        if not reported.calls or tokens != reported.tokens:
            usage = replace(reported, calls=max(reported.calls, 1), tokens=tokens)
        self._budget.commit(plan.reserved, usage + result.probe_usage if result.probe_usage.calls else usage)
        if result.scoring is not None:
            self._budget.add_usage(result.scoring.result().usage)
        # Cut short by the budget, not by the context window: the window limits `max_tokens` below the reservation.
        # A step that ended with its thought is open: the forced end and the answer have room left.
        is_cut = path.request.params.max_tokens == plan.limit < plan.sampling.max_tokens and not result.is_open
        if is_cut and plan.is_level and plan.thought is not None and plan.thought_tokens is not None:
            # by its share: the other paths of the level have theirs
            is_cut = (self._budget.remaining_tokens or 0) < plan.thought.answer_tokens
        self._budget_exhausted |= (finish == "deadline" and not result.is_late) or (is_cut and finish == "length")
        self.has_late_thoughts |= result.is_late

    def _store_scores(self, path: Sequence[int], scores: StepScores | None) -> None:
        """Sets the scores of the nodes that have none; a node never changes its score."""
        if scores is None:
            return
        if len(scores) != len(path):
            raise ValueError(f"the scorer returned {len(scores)} scores for a path of {len(path)} steps")
        if not all(map(math.isfinite, [score for score in scores if score is not None])):
            log.warning("the scorer returned %s; this path counts as not scored", list(scores))
            return
        nodes = self.tree.nodes
        for index, score in zip(path, scores, strict=True):
            node = nodes[index]
            if node.score is None and score is not None:
                first_score = nodes[self._same_paths.first_of(index)].score
                node.score = float(score) if first_score is None else first_score
