"""One round of the engine: plan -> draft -> forward -> accept -> commit -> observe.

There is no other loop. Plain decoding is the empty draft, prefill a turn of many rows, and both may share
a forward pass with anybody's draft tree. After a forward pass the rows of a sequence are

    [0, count)               its next committed tokens; their KV stays
    count + path             draft nodes that were kept and committed; their KV stays
    the other draft nodes    refused, or after the end of the generation; their pages go back
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from decoding.core import FinishReason
from decoding.kv.kv_cache import SharedKV
from decoding.kv.shared_prefix import Group, group_by_prefix
from decoding.model.backend import Backend, RowBatch
from decoding.model.batch import Feed, pack
from decoding.request import Job
from decoding.sampler import SamplingRows
from decoding.scheduler import Scheduler, Turn
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import Fixed
from decoding.speculation.drafters.none import NoDraft
from decoding.speculation.interfaces import Branch, Controller, Draft, Drafter, Feedback, Load, Plan, RoundCost
from decoding.speculation.target_logits import Acceptance, Accepted, Target
from decoding.stats import EngineStats, Moment
from decoding.stopping import StopRule


@dataclass(frozen=True)
class Speculation:
    """The three parts that make a round speculative, or, with their defaults, plain."""

    drafter: Drafter = field(default_factory=NoDraft)
    controller: Controller = field(default_factory=Fixed)
    acceptance: Acceptance = field(default_factory=Coupled)


@dataclass(frozen=True)
class _Verdict:
    """What a forward pass said: the feeds that were complete, and for each its branch and outcome."""

    feeds: list[Feed]
    branches: list[Branch]
    outcomes: list[Accepted]
    target: Target


class RoundLoop:
    """Runs rounds over a scheduler's sequences. Holds no state of its own but a memo of the grouping."""

    def __init__(
        self,
        backend: Backend,
        kv: SharedKV,
        scheduler: Scheduler[Job],
        speculation: Speculation,
        stop_rule: StopRule,
        stats: EngineStats,
    ) -> None:
        self._backend, self._kv, self._scheduler = backend, kv, scheduler
        self._speculation, self._stop, self._stats = speculation, stop_rule, stats
        self._pool = backend.new_pool(kv.pool.capacity)
        self._grouping: tuple[object, list[Group]] = (None, [])

    def release(self) -> None:
        """Gives the KV pool back; nothing can run any more. Calling it twice is harmless."""
        self._pool = None

    def run(self) -> list[tuple[Job, FinishReason]]:
        """Runs one round and commits it; the jobs that ended, still in the scheduler."""
        begin = time.perf_counter()
        turns = self._scheduler.turns()
        branches = {turn.sequence.arrival: turn.sequence.branch() for turn in turns if turn.complete}
        scheduled = time.perf_counter()
        plan, drafts = self._draft(turns, branches)
        drafted = time.perf_counter()
        batch, feeds = self._pack(turns, drafts)
        packed = time.perf_counter()
        target = self._forward(batch, feeds, self._speculation.drafter.feedback_k if plan.learn else 0)
        ran = time.perf_counter()
        verdict = self._accept(feeds, branches, target)
        accepted = time.perf_counter()
        ended = self._commit(feeds, verdict)
        self._account(batch, verdict)
        self._keep_hidden(verdict)
        committed = time.perf_counter()
        if verdict is not None:
            self._observe(verdict, plan, None if any(turn.count > 1 for turn in turns) else batch, begin)
        stats, now = self._stats, time.perf_counter()
        stats.seconds_drafting += (drafted - scheduled) + (now - committed)
        stats.seconds_model += ran - packed
        stats.seconds_sampling += accepted - ran
        stats.seconds_bookkeeping += (scheduled - begin) + (packed - drafted) + (committed - accepted)
        return ended

    def _draft(self, turns: Items[Turn[Job]], branches: dict[int, Branch]) -> tuple[Plan, dict[int, Draft]]:
        """The plan, and a draft for every sequence that chooses a token this round, within rows and pages to spare."""
        jobs = [turn.sequence for turn in turns if turn.complete]
        views = [branches[job.arrival] for job in jobs]
        context = sum(len(job.tokens) for job in jobs)
        spare = self._scheduler.spare_rows(turns)
        load = Load(len(self._scheduler.running), len(self._scheduler.waiting), context, spare)
        plan = self._speculation.controller.plan(views, load)
        if not plan.total:
            return plan, {}
        drafts = self._speculation.drafter.propose(views, plan)
        fitting = {}
        for job, draft in zip(jobs, drafts, strict=True):
            fitting[job.arrival] = draft.within(nodes=spare, depth=job.remaining - 1)
            spare -= len(fitting[job.arrival])
        return plan, fitting

    def _pack(self, turns: Items[Turn[Job]], drafts: dict[int, Draft]) -> tuple[RowBatch, list[Feed]]:
        total = sum(turn.count for turn in turns) + sum(len(draft) for draft in drafts.values())
        pages, at, feeds = self._kv.take(total), 0, []
        for turn in turns:
            draft = drafts.get(turn.sequence.arrival, Draft())
            rows = turn.count + len(draft)
            wanted = turn.count - 1 if turn.complete else rows
            feeds.append(Feed(turn.sequence, turn.count, pages[at : at + rows], wanted, draft))
            at += rows
        return pack(feeds, self._groups([turn.sequence for turn in turns]))

    def _groups(self, jobs: list[Job]) -> list[Group]:
        # Locks pin what is borrowed, so a grouping stays valid until somebody joins, leaves or publishes.
        key = [(job.arrival, job.borrowed) for job in jobs]
        if self._grouping[0] != key:
            self._grouping = key, group_by_prefix(jobs)
        return self._grouping[1]

    def _forward(self, batch: RowBatch, feeds: Items[Feed], feedback_k: int) -> Target | None:
        """The target's view of the wanted rows, or None when this round only fills."""
        before = self._backend.attention_seconds
        hidden = self._backend.forward(batch, self._pool)
        self._stats.seconds_attention += self._backend.attention_seconds - before
        choosing = [feed for feed in feeds if feed.wanted < feed.rows]
        if not choosing:
            return None
        requests = [job_of(feed).request for feed in choosing for _ in range(1 + len(feed.draft))]
        sampling = SamplingRows.of(
            [request.params for request in requests],
            [request.seed for request in requests],
            batch.positions_T[batch.wanted_W] + 1,
        )
        first = np.cumsum([0, *(1 + len(feed.draft) for feed in choosing)])[:-1]
        return Target(self._backend.head(hidden), sampling, tuple(first.tolist()), hidden, feedback_k)

    def _accept(self, feeds: Items[Feed], branches: dict[int, Branch], target: Target | None) -> _Verdict | None:
        if target is None:
            return None
        choosing = [feed for feed in feeds if feed.wanted < feed.rows]
        views = [branches[feed.sequence.arrival] for feed in choosing]
        outcomes = self._speculation.acceptance.accept(views, [feed.draft for feed in choosing], target)
        return _Verdict(choosing, views, outcomes, target)

    def _commit(self, feeds: Items[Feed], verdict: _Verdict | None) -> list[tuple[Job, FinishReason]]:
        outcomes = {} if verdict is None else dict(zip(map(id, verdict.feeds), verdict.outcomes, strict=True))
        ended: list[tuple[Job, FinishReason]] = []
        for feed in feeds:
            job = job_of(feed)
            job.forwards += 1
            outcome = outcomes.get(id(feed))
            if outcome is None:
                job.append_pages(feed.pages)
            elif reason := self._commit_one(job, feed, outcome):
                ended.append((job, reason))
        return ended

    def _commit_one(self, job: Job, feed: Feed, outcome: Accepted) -> FinishReason | None:
        """Commits an outcome as far as the generation goes; the reason when it ended here."""
        before = len(job.generated)
        generated = [*job.generated, *outcome.tokens]
        length, reason = self._stop.first_end(generated, len(outcome.tokens), job.request.params)
        new = length - before
        path = outcome.path[:new]
        job.commit(list(outcome.tokens[:new]), list(outcome.logprobs[:new]))
        job.append_pages(feed.pages[: feed.count])
        if len(feed.draft):
            kept = np.zeros(len(feed.draft), dtype=bool)
            kept[list(path)] = True
            nodes = feed.pages[feed.count :]
            job.append_pages(nodes[list(path)])
            self._kv.pool.give(nodes[~kept])
        if job.borrowed < len(job.request.prefix) <= job.resident:
            self._kv.publish(job)  # at once, so that siblings find their common prompt
        job.drafted += len(feed.draft)
        job.accepted += len(path)
        self._stats.tokens += new
        self._stats.accepted += len(path)
        return reason

    def _keep_hidden(self, verdict: _Verdict | None) -> None:
        """Keeps the hidden state that the last committed token was chosen from, for the jobs that asked for it."""
        if verdict is None:
            return
        for i, feed in enumerate(verdict.feeds):
            job = job_of(feed)
            if job.request.hidden:
                new = len(job.tokens) - len(verdict.branches[i].tokens)
                first = verdict.target.first[i]
                rows = [first, *(first + 1 + node for node in verdict.outcomes[i].path)]
                job.hidden = verdict.target.hidden_Wh[rows[new - 1]]

    def _observe(self, verdict: _Verdict, plan: Plan, batch: RowBatch | None, begin: float) -> None:
        """Tells drafter and controller; `batch` is given when all it fed were last tokens and their drafts."""
        ids, logprobs = verdict.target.feedback if verdict.target.feedback_k else (None, None)
        feedback = []
        for i, feed in enumerate(verdict.feeds):
            rows = slice(verdict.target.first[i], verdict.target.first[i] + 1 + len(feed.draft))
            top = (None, None) if ids is None or logprobs is None else (ids[rows], logprobs[rows])
            feedback.append(Feedback(verdict.branches[i], feed.draft, verdict.outcomes[i].path, *top))
        if plan.learn:
            self._speculation.drafter.observe(feedback)
        cost = None
        if batch is not None:
            context = sum(len(branch.tokens) for branch in verdict.branches)
            cost = RoundCost(len(feedback), len(batch.tokens_T), context, time.perf_counter() - begin)
            self._compare(verdict, plan, cost)
        self._speculation.controller.observe(feedback, cost)

    def _compare(self, verdict: _Verdict, plan: Plan, cost: RoundCost) -> None:
        """Notes what the round took, and what its tokens would have taken one by one."""
        plain = self._speculation.controller.plain_seconds(cost.branches, cost.context_tokens)
        plain = (cost.seconds if plain and not plan.total else plain) / cost.branches
        for feed, branch in zip(verdict.feeds, verdict.branches, strict=True):
            job = job_of(feed)
            tokens = len(job.tokens) - len(branch.tokens)
            job.round_seconds += cost.seconds / cost.branches
            job.plain_seconds += tokens * plain
            self._stats.plain_seconds += tokens * plain
        self._stats.round_seconds += cost.seconds

    def _account(self, batch: RowBatch, verdict: _Verdict | None) -> None:
        stats, running = self._stats, self._scheduler.running
        stats.rounds += 1
        stats.rows += len(batch.tokens_T)
        stats.drafted += sum(len(feed.draft) for feed in verdict.feeds) if verdict else 0
        stats.preemptions, stats.evicted_tokens = self._scheduler.preemptions, self._kv.cache.evicted
        now = Moment(time.monotonic(), len(running), len(self._scheduler.waiting), self._kv.pinned)
        problems = len({job.request.group for job in running})
        stats.residency(now, sum(job.resident for job in running), problems)


def job_of(feed: Feed) -> Job:
    """The generation a feed belongs to."""
    assert isinstance(feed.sequence, Job)
    return feed.sequence
