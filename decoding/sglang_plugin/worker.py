"""SGLang's n-gram worker with a drafter and an acceptance rule of `decoding`; SGLang runs forward passes and commits.

Importing this module replaces two names of SGLang's module, once per process, and only in a process that uses them.
Names that SGLang lacks raise at import or in the first round.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.speculative import ngram_worker
from torch import Tensor

from decoding.core import Tokens
from decoding.sampler import sample_tokens
from decoding.sampling_batch import SamplingBatch
from decoding.sglang_plugin.parts import RuleName, make_parts
from decoding.sglang_plugin.requests import to_branch
from decoding.sglang_plugin.trees import flatten_trees, sampling_rows, to_committed_arrays
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch, Feedback, LogProbs, TokenIds
from decoding.speculation.target_logits import TargetLogits

if TYPE_CHECKING:
    import numpy.typing as npt
    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import GenerationBatchResult
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative.ngram_info import NgramVerifyInput


class RankResult(NamedTuple):
    """Results of one rank, and the most likely `ids` and `logprobs` after every node `[W, K]`.

    draft_checksum   checksum of the verified drafts
    """

    draft_checksum: int
    outcomes: Sequence[VerifyResult]
    ids: TokenIds
    logprobs: LogProbs


class EmptyCorpus:
    """Replaces the corpus of SGLang's n-gram drafter by an empty one."""

    def __init__(self, **settings: object) -> None:
        del settings

    def synchronize(self) -> None:
        """Does nothing: there is no background thread."""

    def batch_put(self, texts: object) -> None:
        """Does nothing: the drafter observes `Feedback` instead."""

    def erase_match_state(self, rids: object) -> None:
        """Does nothing: there is no state per request."""

    def reset(self) -> None:
        """Does nothing: `CoupledWorker.clear_cache_pool` replaces the drafter."""


class CoupledWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """Worker with coupled acceptance.

    A round is `_prepare_draft_tokens`, SGLang's forward pass, `verify_tree_batch`, `_update_ngram_corpus`.
    """

    rule: ClassVar[RuleName] = "coupled"

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        assert ngram_worker.eagle_sample is verify_tree_batch, "another plugin replaced eagle_sample"
        self._speculation = make_parts(self.draft_token_num - 1, self.rule)
        self._requests: Sequence[Req] = ()
        self._branches: list[Branch] = []
        self._drafts: list[Draft] = []
        self._draft_checksum = 0
        self._feedback: list[Feedback] = []

    def alloc_memory_pool(self, **named: object) -> None:
        super().alloc_memory_pool(**named)
        # The model runner exists from here on, not in `__init__`.
        self.model_runner.sampler._sample_from_probs = self._sample_first_tokens

    def clear_cache_pool(self) -> None:
        """Flushes the cache and replaces the drafter, so that a flushed server drafts as a new one."""
        super().clear_cache_pool()
        self._speculation = make_parts(self.draft_token_num - 1, self.rule)

    def forward_batch_generation(
        self, batch: ScheduleBatch, *arguments: object, **named: object
    ) -> GenerationBatchResult:
        self._requests = batch.reqs  # for `_sample_first_tokens`, which gets no batch
        return super().forward_batch_generation(batch, *arguments, **named)

    def _prepare_draft_tokens(self, batch: ScheduleBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        late_tokens = self._late_tokens(batch)
        self._branches = [to_branch(request, late) for request, late in zip(batch.reqs, late_tokens, strict=True)]
        self._drafts = self._speculation.draft_trees(self._branches)
        tokens, mask = flatten_trees(self._branches, self._drafts, self.draft_token_num)
        self._draft_checksum = zlib.crc32(mask.tobytes(), zlib.crc32(tokens.tobytes()))
        return tokens, mask

    def _prepare_for_speculative_decoding(self, batch: ScheduleBatch) -> None:
        super()._prepare_for_speculative_decoding(batch)
        # Prompt and idle batches have no tree; `verify_tree_batch` finds this worker through the tree.
        if batch.forward_mode.is_target_verify():
            batch.spec_info.verifier = self

    def _late_tokens(self, batch: ScheduleBatch) -> list[Tokens]:
        """Returns the tokens that the last round accepted and that overlapped scheduling commits one round late."""
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        tokens = batch.spec_info.accept_tokens.tolist()
        lengths = batch.spec_info.accept_lens.tolist()
        width = self.draft_token_num
        return [tuple(tokens[i * width : i * width + length]) for i, length in enumerate(lengths)]

    def verify_logits(self, logits_WV: Tensor) -> tuple[Tensor, ...]:
        """Returns the accepted tokens and nodes, given the target's logits after every node."""
        ranks = get_tp_group()
        # The first rank decides and all ranks use its result: logits may differ in the last bit, drafts must not.
        result: RankResult = ranks.broadcast_object(self._verify_drafts(logits_WV) if ranks.is_first_rank else None)
        assert result.draft_checksum == self._draft_checksum, "ranks of one model drafted different tokens"
        nodes, self._feedback = self.draft_token_num, []
        for i, (branch, draft, outcome) in enumerate(zip(self._branches, self._drafts, result.outcomes, strict=True)):
            rows = slice(i * nodes, i * nodes + 1 + len(draft))  # without the padding after the draft
            self._feedback.append(
                Feedback(branch, draft, outcome.accepted_nodes, result.ids[rows], result.logprobs[rows])
            )
        return tuple(
            torch.from_numpy(array).to(logits_WV.device) for array in to_committed_arrays(result.outcomes, nodes)
        )

    def _verify_drafts(self, logits_WV: Tensor) -> RankResult:
        nodes = self.draft_token_num
        rows = sampling_rows(self._branches, self._drafts, nodes)
        first_rows = tuple(range(0, nodes * len(self._branches), nodes))
        target = TargetLogits(logits_WV, rows, first_rows, feedback_k=self._speculation.drafter.feedback_k)
        outcomes = self._speculation.acceptance.verify_drafts(self._branches, self._drafts, target)
        return RankResult(self._draft_checksum, outcomes, *target.top_logprobs)

    def _update_ngram_corpus(self, batch: ScheduleBatch) -> None:
        del batch
        self._speculation.drafter.observe(self._feedback)

    def _sample_first_tokens(
        self, probs_BV: Tensor, sampling_info: SamplingBatchInfo, positions: Tensor, simple: bool
    ) -> tuple[Tensor, None]:
        """Samples the token after each prompt with the noise of its position, so that the seed decides it too."""
        del positions, simple
        assert sampling_info.sampling_mask_batch_indices is None, "sampling masks are not supported with this algorithm"
        branches = [to_branch(request) for request in self._requests]
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


class RecursiveWorker(CoupledWorker):
    """Worker with recursive rejection sampling."""

    rule = "recursive_rejection"


def verify_tree_batch(
    tree: NgramVerifyInput,
    batch: ScheduleBatch,
    output: LogitsProcessorOutput,
    grammar_mask: GrammarMask | None = None,
    *,
    watermark_state: object = None,
) -> tuple[Tensor, ...]:
    """Replaces SGLang's `eagle_sample`; returns the fields of `trees.CommittedArrays` as tensors.

    *Mutates* the logits as SGLang's function does: penalties of a request apply to its whole tree.
    """
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
    worker: CoupledWorker = tree.verifier
    return worker.verify_logits(logits_WV)


ngram_worker.NgramCorpus = EmptyCorpus
ngram_worker.eagle_sample = verify_tree_batch
