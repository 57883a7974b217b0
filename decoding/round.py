"""One round of the engine: plan -> draft -> forward -> accept -> commit -> observe.

A round for which there is no memory is undone before anything is committed, and runs again with fewer draft tokens or
fewer tokens (see `decoding.kv.round_limit`). Drafter and controller learn of the round that fitted.

There is no other loop. Plain decoding is the empty draft, a prompt is a sequence with many tokens, and both may share
a forward pass with a draft tree. After a forward pass the tokens of a sequence are

    [0, num_committed)           committed tokens; their KV stays
    num_committed + path         draft nodes that were accepted and committed; their KV stays
    the other draft nodes        rejected, or after the end of the generation; their slots are freed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from decoding.core import FinishReason, Generation
from decoding.kv.kv_cache import KVCache
from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
from decoding.kv.pool_memory import open_pool
from decoding.kv.slots import Slots
from decoding.model.attention_recorder import AttentionRecorder
from decoding.model.backend import Backend, PreparesRounds, TokenBatch
from decoding.model.batch import EMPTY_DRAFT, SequenceInput
from decoding.model.key_table import KeyTable
from decoding.model.round_packer import RoundPacker, make_packer
from decoding.request import Request
from decoding.round_clock import RoundClock
from decoding.round_commit import RoundCommitter
from decoding.round_result import BatchVerifyResult
from decoding.sampling_batch import RoundRows
from decoding.scheduler import ScheduledSequence, Scheduler
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.draft_memory import DraftMemory, MemoryLimited
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.none import NoDraft
from decoding.speculation.interfaces import (
    AcceptanceRule,
    BatchLoad,
    Branch,
    Controller,
    Drafter,
    DraftPlan,
    Feedback,
    RoundCost,
    reads_hidden,
)
from decoding.speculation.saving import SavingSchedule
from decoding.speculation.target_logits import TargetLogits
from decoding.stats import EngineStats, RoundSnapshot
from decoding.stopping import StopRule

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Speculation:
    """The three parts of a speculative round; the defaults make it plain decoding.

    saving  saves what the drafter has learned, now and then and when the engine is closed
    """

    drafter: Drafter = field(default_factory=NoDraft)
    controller: Controller = field(default_factory=FixedController)
    acceptance: AcceptanceRule = field(default_factory=Coupled)
    saving: SavingSchedule | None = None

    @property
    def has_drafts(self) -> bool:
        """Whether rounds may have drafts."""
        return not isinstance(self.drafter, NoDraft)


class RoundRunner:
    """Runs rounds over a scheduler's requests. Its state is the KV pool, its table of keys, and how the last round's
    requests were grouped and sampled.

    device     that of the pool
    committer  commits the outcome of each round
    """

    def __init__(
        self,
        backend: Backend,
        kv: KVCache,
        scheduler: Scheduler[Request],
        speculation: Speculation,
        stop_rule: StopRule,
        stats: EngineStats,
        *,
        records_attention: bool = False,
    ) -> None:
        self._records_attention = records_attention
        self._backend, self._kv, self._scheduler = backend, kv, scheduler
        self._speculation, self._stats = speculation, stats
        self._pool: Tensor | None = open_pool(backend.new_kv_pool, kv.pool.capacity, backend.kv_bytes_per_token)
        self.device = self._pool.device
        self._clock = RoundClock(stats, self.device)
        self._prepares = backend if isinstance(backend, PreparesRounds) else None
        self._is_launched = False  # whether the last round ended without a wait for the device
        self._key_table = KeyTable(kv.pool.capacity)
        self._packer: RoundPacker[Request] = make_packer(backend, self._key_table)
        if isinstance(speculation.controller, MemoryLimited):
            feedback_k = speculation.drafter.feedback_k
            speculation.controller.set_memory(DraftMemory(backend.kv_bytes_per_token, backend.vocab_size, feedback_k))
        self.committer = RoundCommitter(kv, stop_rule, stats)
        self._rows: tuple[object, RoundRows] | None = None
        self._unlearned: list[Feedback] = []

    def prepare_rounds(self, rows: int) -> None:
        """Makes what rounds of up to so many rows need, so that few of them wait for it."""
        tiles = self._backend.segment_tiles
        if self._prepares is not None and tiles is not None and self._pool is not None:
            self._prepares.prepare_rounds(self._pool, tiles, self._key_table, rows)

    def release_pool(self) -> None:
        """Frees the KV pool and its table; no round can run afterwards. Calling it twice is harmless."""
        self._pool = None
        self._key_table.release()

    def run_round(self) -> Iterator[tuple[Request, Generation]]:
        """Runs one round; yields each request that ended, already out of the scheduler, with its generation."""
        # before admission: an expired request gets no slots; alone, because results are told when the round has ended
        if expired := list(self._end_expired()):
            yield from expired
            return
        self._admit_waiting()
        if not self._scheduler.running:
            return
        assert self._pool is not None, "the pool was released"
        begin = time.perf_counter()
        clock, is_alone = self._clock, not self._is_launched
        with clock.measure_host("bookkeeping"):
            scheduled = self._scheduler.schedule_round()
            branches = {part.sequence.arrival: part.sequence.to_branch() for part in scheduled if part.is_complete}
        with clock.measure_host("drafting"):
            plan, drafts = self._propose_drafts(scheduled, branches)
        feedback_k = self._speculation.drafter.feedback_k if plan.collect_feedback else 0
        gives_hidden = plan.collect_feedback and reads_hidden(self._speculation.drafter)
        failures, prepared = self._scheduler.limit.num_failures, self._count_prepared()
        while True:
            # what an attempt without memory has computed must be gone before the next one
            hidden: Tensor | None = None
            target: TargetLogits | None = None
            slots = self._kv.allocate(sum(part.num_tokens for part in scheduled) + sum(map(len, drafts.values())))
            try:
                with clock.measure_host("bookkeeping"):
                    batch, inputs = self._pack_inputs(scheduled, drafts, slots)
                with clock.measure_device("model"):
                    attention_before = self._backend.attention_seconds
                    hidden = self._backend.forward(batch, self._pool)
                    self._stats.seconds_attention += self._backend.attention_seconds - attention_before
                    target = self._compute_logits(hidden, batch, inputs, feedback_k)
                # a GPU still computes what was launched above
                clock.add_passed()
                with clock.measure_host("drafting"):
                    self._learn_feedback()
                with clock.measure_device("sampling"):
                    verified = self._verify_drafts(inputs, branches, target, gives_hidden=gives_hidden)
                break
            except MEMORY_ERRORS as error:
                scheduled, drafts = self._undo_round(scheduled, drafts, slots, error)
        with clock.measure_host("bookkeeping"):
            ended = self.committer.commit_results(inputs, verified, batch)
            # before the ended requests leave: they ran in this round
            self._count_round(batch, verified)
            if verified is not None:
                # after the commit, which decides which token is a request's last
                verified.store_hidden()
                verified.store_uncertainty()
        with clock.measure_host("drafting"):
            if verified is not None:
                # only rounds without prefill fit the cost curve, of those that ran once and waited for themselves alone
                is_alone &= failures == self._scheduler.limit.num_failures and prepared == self._count_prepared()
                fits = is_alone and all(part.num_tokens == 1 for part in scheduled)
                self._observe_round(verified, plan, batch if fits else None, begin)
        self._is_launched = verified is None and self.device.type == "cuda"
        # of the last round for now nothing must be missing until there is another one
        is_last = len(ended) == len(self._scheduler.running) and not self._scheduler.waiting
        if is_last:
            clock.add_all()
            self._packer.forget_rounds()
        self._stats.seconds_rounds += time.perf_counter() - begin
        if self._speculation.saving is not None and plan.collect_feedback:
            self._speculation.saving.note_round(time.monotonic())  # not a part of the round: controllers time those
        for request, reason in ended:
            yield self._end_request(request, reason)

    def _count_prepared(self) -> int:
        return 0 if self._prepares is None else self._prepares.num_prepared

    def _undo_round(
        self,
        scheduled: list[ScheduledSequence[Request]],
        drafts: Mapping[int, Draft],
        slots: Slots,
        error: RuntimeError | MemoryError,
    ) -> tuple[list[ScheduledSequence[Request]], dict[int, Draft]]:
        """Undoes a round for which there was no memory, of which nothing has been committed.

        Returns the parts and drafts of the next attempt; a draft keeps its first nodes. Raises: as `undo_round`.
        """
        num_drafted = sum(map(len, drafts.values()))
        self._stats.out_of_memory += is_out_of_memory(error)
        scheduled = self._scheduler.undo_round(scheduled, slots, num_drafted, error)
        spare, shorter = self._scheduler.limit.tokens - sum(part.num_tokens for part in scheduled), {}
        for arrival, draft in drafts.items():
            if len(draft):
                # each its share of what is left, so that all of it is given
                # (none of independent draws: how many nodes they are depends on what was drawn)
                nodes = 0 if draft.is_iid else len(draft) * spare // num_drafted
                shorter[arrival] = draft.truncate_to(nodes=nodes, depth=len(draft))
                spare, num_drafted = spare - nodes, num_drafted - len(draft)
        return scheduled, shorter

    def _end_expired(self) -> Iterator[tuple[Request, Generation]]:
        """Ends the requests that are past their deadline, with the tokens they have."""
        now = time.monotonic()
        for request in (*self._scheduler.waiting, *self._scheduler.running):
            if request.deadline is not None and now >= request.deadline:
                yield self._end_request(request, "deadline")

    def _end_request(self, request: Request, reason: FinishReason) -> tuple[Request, Generation]:
        # The result comes first: a request that has left the scheduler no longer gets the error of a failed round.
        generation = request.to_generation(reason)
        self._scheduler.remove_sequence(request)
        return request, generation

    def _admit_waiting(self) -> None:
        for request in self._scheduler.admit_waiting():
            if request.num_cached_prompt is None:  # a preempted request is counted at its first admission only
                request.num_cached_prompt = request.num_computed
                self._stats.prompt_tokens += request.prompt_length
                self._stats.cached_tokens += request.num_cached_prompt

    def _propose_drafts(
        self, scheduled: Sequence[ScheduledSequence[Request]], branches: Mapping[int, Branch]
    ) -> tuple[DraftPlan, dict[int, Draft]]:
        """Returns the plan and, by arrival, a draft of each complete request, within the spare tokens and slots."""
        requests = [part.sequence for part in scheduled if part.is_complete]
        views = [branches[request.arrival] for request in requests]
        context = sum(len(request.tokens) for request in requests)
        spare = self._scheduler.count_spare_tokens(scheduled)
        load = BatchLoad(len(self._scheduler.running), len(self._scheduler.waiting), context, spare)
        plan = self._speculation.controller.plan_drafts(views, load)
        if not plan.max_total:
            return plan, {}
        try:
            proposed = self._speculation.drafter.propose(views, plan)
        except MEMORY_ERRORS as error:
            if not is_out_of_memory(error):
                raise
            # the drafter has started over by itself; this round runs without it
            log.debug("there was no memory for drafts", exc_info=True)
            self._stats.out_of_memory += 1
            return plan, {}
        drafts = {}
        for request, draft in zip(requests, proposed, strict=True):
            drafts[request.arrival] = draft.truncate_to(nodes=spare, depth=request.max_draft_depth)
            spare -= len(drafts[request.arrival])
        return plan, drafts

    def _pack_inputs(
        self, scheduled: Sequence[ScheduledSequence[Request]], drafts: Mapping[int, Draft], slots: Slots
    ) -> tuple[TokenBatch, list[SequenceInput[Request]]]:
        at, inputs = 0, []
        for part in scheduled:
            draft = drafts.get(part.sequence.arrival, EMPTY_DRAFT)
            end = at + part.num_tokens + len(draft.tokens)
            # Logits are needed after the last committed token and after each draft node; after none while filling.
            first_output = part.num_tokens - 1 if part.is_complete else part.num_tokens
            inputs.append(SequenceInput(part.sequence, part.num_tokens, slots[at:end], first_output, draft))
            at = end
        batch, ordered = self._packer.pack_round(inputs)
        return (replace(batch, recorder=AttentionRecorder()) if self._records_attention else batch), ordered

    def _compute_logits(
        self, hidden: Tensor, batch: TokenBatch, inputs: Sequence[SequenceInput[Request]], feedback_k: int
    ) -> TargetLogits | None:
        """Returns the target's logits, or None when this round only fills prompts."""
        complete = _select_complete(inputs)
        if not complete:
            return None
        key = [item.sequence.arrival for item in complete]
        if self._rows is None or self._rows[0] != key:
            requests = [item.sequence for item in complete]
            params, seeds = [request.params for request in requests], [request.seed for request in requests]
            self._rows = key, RoundRows(params, seeds)
        # one row after the last committed token and one after each draft node
        rows, counts = self._rows[1], [item.num_tokens - item.first_output for item in complete]
        # noise belongs to the position of the token to be chosen
        sampling = rows.place(batch.positions_T[batch.logits_indices] + 1, counts)
        return TargetLogits(self._backend.apply_head(hidden), sampling, rows.first_rows, hidden, feedback_k)

    def _verify_drafts(
        self,
        inputs: Sequence[SequenceInput[Request]],
        branches: Mapping[int, Branch],
        target: TargetLogits | None,
        *,
        gives_hidden: bool,
    ) -> BatchVerifyResult | None:
        if target is None:
            return None
        complete = _select_complete(inputs)
        views = [branches[item.sequence.arrival] for item in complete]
        results = self._speculation.acceptance.verify_drafts(views, [item.draft for item in complete], target)
        verified = BatchVerifyResult(complete, views, results, target, gives_hidden)
        verified.read_logits()
        return verified

    def _observe_round(
        self, verified: BatchVerifyResult, plan: DraftPlan, batch: TokenBatch | None, begin: float
    ) -> None:
        """Gives the controller the outcome, and keeps it for the drafter; `batch` is None for a round with prefill."""
        is_read = plan.max_total or (plan.collect_feedback and not isinstance(self._speculation.drafter, NoDraft))
        feedback = verified.collect_feedback() if is_read else []
        if plan.collect_feedback:
            self._unlearned += feedback
        # nothing computes beside the host: drafts of the next round may know this one
        if verified.target.logits_WV.is_cpu:
            self._learn_feedback()
        cost = None
        if batch is not None:
            context = sum(len(branch.tokens) for branch in verified.branches)
            cost = RoundCost(len(verified.branches), len(batch.tokens_T), context, time.perf_counter() - begin)
        self._speculation.controller.observe(feedback, cost)

    def _learn_feedback(self) -> None:
        """Gives the drafter the outcomes that it has not seen."""
        if self._unlearned:
            feedback, self._unlearned = self._unlearned, []
            self._speculation.drafter.observe(feedback)

    def _count_round(self, batch: TokenBatch, verified: BatchVerifyResult | None) -> None:
        stats, running = self._stats, self._scheduler.running
        stats.rounds += 1
        self._scheduler.limit.count_fitted()
        stats.batched_tokens += len(batch.tokens_T)
        stats.drafted += sum(item.num_tokens - item.num_committed for item in verified.inputs) if verified else 0
        stats.preemptions, stats.evicted_tokens = self._scheduler.num_preemptions, self._kv.prefix_cache.num_evicted
        now = RoundSnapshot(time.monotonic(), len(running), len(self._scheduler.waiting), self._kv.num_pinned)
        problems = len({request.group for request in running})
        stats.record_residency(now, sum([request.num_slots for request in running]), problems)


def _select_complete(inputs: Sequence[SequenceInput[Request]]) -> list[SequenceInput[Request]]:
    """Returns the inputs after which a token is chosen, in the order of their logits."""
    return [item for item in inputs if item.first_output < item.num_tokens]
