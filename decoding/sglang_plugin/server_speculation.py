"""What our workers inside SGLang have in common, whatever SGLang's worker they build on: rounds, tables, first tokens.

Importing this module replaces `Scheduler.on_idle`; `hooks` checks before that SGLang has it.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from torch import Tensor

from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.sglang_plugin import COUNTS_BEGIN
from decoding.sglang_plugin.adaptive_nodes import AdaptiveNodes
from decoding.sglang_plugin.parts import RuleName, SpeculativeParts
from decoding.sglang_plugin.requests import RequestReader
from decoding.sglang_plugin.rounds import PlannedRound, RoundTimer, ServerRounds, VerifiedRound
from decoding.sglang_plugin.server_table import open_server_table
from decoding.sglang_plugin.settings import PluginSettings
from decoding.sglang_plugin.trees import to_committed_arrays
from decoding.speculation.drafters.table_memory import TableMemory, make_origin
from decoding.speculation.interfaces import Branch
from decoding.speculation.saving import SavingSchedule

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    from decoding.speculation.drafters.table_file import TableOrigin

log = logging.getLogger(__name__)


class RankResult(NamedTuple):
    """Results of one rank, with the checksum of the drafts that it verified."""

    draft_checksum: int
    verified: VerifiedRound


class ServerSpeculation(BaseSpecWorker):  # type: ignore[misc]
    """Base of our workers, before a worker of SGLang in the list of bases."""

    rule: ClassVar[RuleName] = "coupled"

    @abstractmethod
    def make_parts(self) -> SpeculativeParts:
        """Returns a new drafter and its acceptance rule."""

    def begin_speculation(
        self, settings: PluginSettings, parts: SpeculativeParts, adaptive: AdaptiveNodes | None
    ) -> None:
        """Sets up the rounds; the end of every constructor. *Mutates*."""
        self._settings = settings
        self._rounds, self._timer = ServerRounds(parts, adaptive), RoundTimer()
        self._saving = self._open_table(parts)
        self.reader = RequestReader()
        self._requests: Sequence[Req] = ()
        self._planned: PlannedRound | None = None
        self._verified: VerifiedRound | None = None
        self._draft_checksum = 0

    def alloc_memory_pool(self, **named: object) -> None:
        super().alloc_memory_pool(**named)
        # The model runner exists from here on, not in `__init__`.
        self.target_worker.model_runner.sampler._sample_from_probs = self._sample_first_tokens

    def clear_cache_pool(self) -> None:
        """Flushes the cache. A table that lasts is saved; another one is emptied, so that the server drafts as new."""
        super().clear_cache_pool()
        log.info("%s %s", COUNTS_BEGIN, json.dumps(self._rounds.counts))
        self._rounds.counts.clear()
        if self._saving is not None:
            self._saving.save_now(time.monotonic())
        else:
            self._rounds.parts = self.make_parts()

    def note_idle(self) -> None:
        """Called when the server has no request."""
        if self._saving is not None:
            self._saving.note_idle(time.monotonic())

    def note_batch(self, batch: ScheduleBatch) -> None:
        """Notes the requests of a forward pass, for what gets no batch. Called before each. *Mutates*."""
        self._requests = batch.reqs
        if not batch.forward_mode.is_decode():
            self._timer.interrupt()

    def plan_round(self, branches: Sequence[Branch]) -> PlannedRound:
        """Plans and drafts a round; all ranks of a model do the same. *Mutates*."""
        seconds = self._timer.begin_round(frozenset(request.rid for request in self._requests), time.perf_counter())
        if self._rounds.adaptive is not None:
            # the clocks of ranks differ, their plans must not
            seconds = get_tp_group().broadcast_object(seconds)
        self._planned = planned = self._rounds.plan_round(branches, seconds)
        self._draft_checksum = zlib.crc32(planned.trees.visible.tobytes(), zlib.crc32(planned.trees.tokens.tobytes()))
        return planned

    def verify_logits(self, logits_WV: Tensor) -> tuple[Tensor, ...]:
        """Returns the accepted tokens and nodes, given the target's logits after every node."""
        assert self._planned is not None
        planned, ranks = self._planned, get_tp_group()
        # The first rank decides and all ranks use its result: logits may differ in the last bit, drafts must not.
        rank_result = (
            RankResult(self._draft_checksum, self._rounds.verify_round(planned, logits_WV))
            if ranks.is_first_rank
            else None
        )
        result: RankResult = ranks.broadcast_object(rank_result)
        assert result.draft_checksum == self._draft_checksum, "ranks of one model drafted different tokens"
        self._verified = result.verified
        return tuple(
            torch.from_numpy(array).to(logits_WV.device)
            for array in to_committed_arrays(result.verified.outcomes, planned.nodes)
        )

    def end_round(self) -> None:
        """Lets the drafter learn from the round that was verified. *Mutates*."""
        assert self._planned is not None
        assert self._verified is not None
        self._rounds.end_round(self._planned, self._verified)
        if self._planned.learns and self._saving is not None:
            self._saving.note_round(time.monotonic())

    def _open_table(self, parts: SpeculativeParts) -> SavingSchedule | None:
        """Reads the tables of `--reason-table`; returns what saves this server's. Raises: ValueError."""
        if self._settings.table is None:
            return None
        memory = TableMemory(self._settings.table, self._settings.table_decay)
        return open_server_table(memory, parts.table, self._make_origin, get_tp_group())

    def _make_origin(self) -> TableOrigin:
        tokenizer = self.target_worker.tokenizer
        vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
        return make_origin(self.server_args.model_path, vocabulary, self.server_args.revision)

    def _sample_first_tokens(
        self, probs_BV: Tensor, sampling_info: SamplingBatchInfo, positions: Tensor, simple: bool
    ) -> tuple[Tensor, None]:
        """Samples the token after each prompt with the noise of its position, so that the seed decides it too."""
        del positions, simple
        assert sampling_info.sampling_mask_batch_indices is None, "sampling masks are not supported with this algorithm"
        branches = self.reader.to_branches(self._requests)
        rows = SamplingBatch.from_params(
            [branch.params for branch in branches],
            [branch.seed for branch in branches],
            [len(branch.tokens) for branch in branches],
        )
        # SGLang has applied the temperature to the probabilities: 0 stays 0, every other value becomes 1.
        applied_T = np.ceil(np.minimum(rows.temperature_T, np.float32(1)))
        untempered = SamplingBatch(applied_T, rows.top_k_T, rows.top_p_T, rows.min_p_T, rows.keys_T2)
        tokens = sample_tokens(probs_BV.log(), untempered).to(torch.int32)
        broadcast_tokens: Tensor = get_tp_group().broadcast(tokens)
        return broadcast_tokens, None


def verify_tree_batch(
    tree: NgramVerifyInput | EagleVerifyInput,
    batch: ScheduleBatch,
    output: LogitsProcessorOutput,
    grammar_mask: GrammarMask | None = None,
    *,
    watermark_state: object = None,
    **unused: object,
) -> tuple[Tensor, ...]:
    """Replaces SGLang's `eagle_sample`; returns the fields of `trees.CommittedArrays` as tensors.

    *Mutates* the logits as SGLang's function does: penalties of a request apply to its whole tree.
    """
    del unused  # of algorithms that are not ours
    info, logits_WV = batch.sampling_info, output.next_token_logits
    assert watermark_state is None or not info.has_watermark_candidates, "no watermarks with this algorithm"
    nodes = tree.draft_token_num
    if info.acc_additive_penalties is not None:
        logits_WV.add_(info.acc_additive_penalties.repeat_interleave(nodes, dim=0))
    if info.acc_scaling_penalties is not None:
        apply_scaling_penalties(logits_WV, info.acc_scaling_penalties.repeat_interleave(nodes, dim=0))
    if info.logit_bias is not None:
        logits_WV.add_(info.logit_bias.repeat_interleave(nodes, dim=0))
    if grammar_mask is not None:
        grammar_mask.apply(logits_WV)
    worker: ServerSpeculation = tree.verifier
    return worker.verify_logits(logits_WV)


_wait_idle = Scheduler.on_idle


def save_when_idle(scheduler: Scheduler) -> None:
    """Replaces SGLang's `Scheduler.on_idle`, which waits for requests."""
    if isinstance(scheduler.draft_worker, ServerSpeculation):
        scheduler.draft_worker.note_idle()
    _wait_idle(scheduler)


Scheduler.on_idle = save_when_idle
