"""SGLang's n-gram worker with our drafter and acceptance rule; memory, forward passes and commits stay SGLang's.

Importing this module replaces two names of SGLang's module, once per process, and only in a process that uses them.
Names that are missing in SGLang fail at import or at the first round, not in silence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.speculative import ngram_worker

from decoding.core import Tokens
from decoding.sampler import SamplingBatch, sample_tokens
from decoding.sglang_plugin.parts import RuleName, make_parts
from decoding.sglang_plugin.requests import to_branch
from decoding.sglang_plugin.trees import flatten_trees, sampling_rows, to_committed_arrays
from decoding.speculation.draft import Draft, VerifyResult
from decoding.speculation.interfaces import Branch, Feedback
from decoding.speculation.target_logits import TargetLogits


class RankResult(NamedTuple):
    """What a rank made of its logits, and the likeliest `ids` and `logprobs` after every node `[W, K]`.

    draft_checksum   checksum of the drafts that it verified
    """

    draft_checksum: int
    outcomes: Sequence[VerifyResult]
    ids: Any
    logprobs: Any


class EmptyCorpus:
    """Replaces the corpus of SGLang's n-gram drafter."""

    def __init__(self, **settings: object) -> None:
        del settings

    def synchronize(self) -> None:
        """Nothing is learned aside."""

    def batch_put(self, texts: object) -> None:
        """Learns nothing."""

    def erase_match_state(self, rids: object) -> None:
        """Knows no requests."""

    def reset(self) -> None:
        """Has nothing to forget."""


class CoupledWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """One round: `_prepare_draft_tokens`, SGLang's forward pass, `verify`, `_update_ngram_corpus`."""

    rule: ClassVar[RuleName] = "coupled"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert ngram_worker.eagle_sample is verify, "another plugin replaced eagle_sample"
        self._speculation = make_parts(self.draft_token_num - 1, self.rule)
        self._requests: Sequence[Any] = ()
        self._branches: list[Branch] = []
        self._drafts: list[Draft] = []
        self._draft_checksum = 0
        self._feedback: list[Feedback] = []

    def alloc_memory_pool(self, **named: Any) -> None:
        super().alloc_memory_pool(**named)
        self.model_runner.sampler._sample_from_probs = self._first_tokens

    def clear_cache_pool(self) -> None:
        """A flushed cache forgets what was learned too."""
        super().clear_cache_pool()
        self._speculation = make_parts(self.draft_token_num - 1, self.rule)

    def forward_batch_generation(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        self._requests = batch.reqs
        return super().forward_batch_generation(batch, *arguments, **named)

    def _prepare_draft_tokens(self, batch: Any) -> Any:
        late = self._not_yet_committed(batch)
        self._branches = [to_branch(request, new) for request, new in zip(batch.reqs, late, strict=True)]
        self._drafts = self._speculation.draft_trees(self._branches)
        tokens, mask = flatten_trees(self._branches, self._drafts, self.draft_token_num)
        self._draft_checksum = zlib.crc32(mask.tobytes(), zlib.crc32(tokens.tobytes()))
        return tokens, mask

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        super()._prepare_for_speculative_decoding(batch)
        if batch.forward_mode.is_target_verify():
            batch.spec_info.verifier = self

    def _not_yet_committed(self, batch: Any) -> list[Tokens]:
        """What the last round accepted, where results are written down one round late."""
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        tokens = batch.spec_info.accept_tokens.tolist()
        lengths = batch.spec_info.accept_lens.tolist()
        width = self.draft_token_num
        return [tuple(tokens[i * width : i * width + length]) for i, length in enumerate(lengths)]

    def verify_logits(self, logits_WV: Any) -> Any:
        """Returns the accepted tokens and nodes, given the target's logits after every node."""
        ranks = get_tp_group()
        # One rank decides and all learn from its result: logits may differ in a last bit, drafts must not.
        result: RankResult = ranks.broadcast_object(self._verify_drafts(logits_WV) if ranks.is_first_rank else None)
        assert result.draft_checksum == self._draft_checksum, "ranks of one model drafted different tokens"
        nodes, self._feedback = self.draft_token_num, []
        for i, (branch, draft, outcome) in enumerate(zip(self._branches, self._drafts, result.outcomes, strict=True)):
            fed = slice(i * nodes, i * nodes + 1 + len(draft))
            self._feedback.append(
                Feedback(branch, draft, outcome.accepted_nodes, result.ids[fed], result.logprobs[fed])
            )
        return tuple(
            torch.from_numpy(array).to(logits_WV.device) for array in to_committed_arrays(result.outcomes, nodes)
        )

    def _verify_drafts(self, logits_WV: Any) -> RankResult:
        nodes = self.draft_token_num
        rows = sampling_rows(self._branches, self._drafts, nodes)
        first = tuple(range(0, nodes * len(self._branches), nodes))
        target = TargetLogits(logits_WV, rows, first, feedback_k=self._speculation.drafter.feedback_k)
        outcomes = self._speculation.acceptance.verify_drafts(self._branches, self._drafts, target)
        return RankResult(self._draft_checksum, outcomes, *target.top_logprobs)

    def _update_ngram_corpus(self, batch: Any) -> None:
        del batch
        self._speculation.drafter.observe(self._feedback)

    def _first_tokens(self, probs_BV: Any, sampling_info: Any, positions: Any, simple: bool) -> tuple[Any, None]:
        """The token after a prompt, with the noise of its position: all of a generation is its seed's."""
        del positions, simple
        assert sampling_info.sampling_mask_batch_indices is None, "sampling masks are not supported with this algorithm"
        branches = [to_branch(request) for request in self._requests]
        rows = SamplingBatch.from_params(
            [branch.params for branch in branches],
            [branch.seed for branch in branches],
            [len(branch.tokens) for branch in branches],
        )
        capped = np.minimum(rows.temperature_T, np.float32(1))  # they have their temperature already
        untempered = SamplingBatch(np.ceil(capped), rows.top_k_T, rows.top_p_T, rows.min_p_T, rows.keys_T2)
        tokens = sample_tokens(probs_BV.log(), untempered).to(torch.int32)
        return get_tp_group().broadcast(tokens), None


class RecursiveWorker(CoupledWorker):
    """The same with recursive rejection."""

    rule = "recursive_rejection"


def verify(tree: Any, batch: Any, output: Any, grammar_mask: Any = None, *, watermark_state: Any = None) -> Any:
    """Replaces SGLang's `eagle_sample`; returns the fields of `trees.CommittedArrays`.

    *Mutates* the logits as SGLang's does: penalties of a request hold for its whole tree.
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
    return tree.verifier.verify_logits(logits_WV)


ngram_worker.NgramCorpus = EmptyCorpus
ngram_worker.eagle_sample = verify
