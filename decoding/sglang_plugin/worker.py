"""SGLang's n-gram worker with another drafter and another judge; memory, forward passes and commits stay its own.

Importing this module puts our two parts in the place of SGLang's in its module, once per process, and only in a process
that was told to use them. Names that are no longer there fail at import or at the first round, not in silence.
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
from decoding.sampler import SamplingRows, sample
from decoding.sglang_plugin.parts import Rule, parts
from decoding.sglang_plugin.requests import branch_of
from decoding.sglang_plugin.trees import committed, sampling_rows, trees
from decoding.speculation.interfaces import Branch, Draft, Feedback
from decoding.speculation.target_logits import Accepted, Target


class Judgement(NamedTuple):
    """What a rank made of its logits, and the likeliest `ids` and `logprobs` after every node `[W, K]`.

    drafted   a checksum of the drafts that it judged
    """

    drafted: int
    outcomes: Sequence[Accepted]
    ids: Any
    logprobs: Any


class NoCorpus:
    """Stands where SGLang keeps what its own n-gram drafter has learned."""

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


class Worker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """One round: `_prepare_draft_tokens`, SGLang's forward pass, `verify`, `_update_ngram_corpus`."""

    rule: ClassVar[Rule] = "coupled"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert ngram_worker.eagle_sample is verify, "something else took the place of our judge"
        self._parts = parts(self.draft_token_num - 1, self.rule)
        self._requests: Sequence[Any] = ()
        self._branches: list[Branch] = []
        self._drafts: list[Draft] = []
        self._drafted = 0
        self._feedback: list[Feedback] = []

    def alloc_memory_pool(self, **named: Any) -> None:
        super().alloc_memory_pool(**named)
        self.model_runner.sampler._sample_from_probs = self._first_tokens

    def clear_cache_pool(self) -> None:
        """A flushed cache forgets what was learned too."""
        super().clear_cache_pool()
        self._parts = parts(self.draft_token_num - 1, self.rule)

    def forward_batch_generation(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        self._requests = batch.reqs
        return super().forward_batch_generation(batch, *arguments, **named)

    def _prepare_draft_tokens(self, batch: Any) -> Any:
        late = self._not_yet_committed(batch)
        self._branches = [branch_of(request, new) for request, new in zip(batch.reqs, late, strict=True)]
        self._drafts = self._parts.draft(self._branches)
        tokens, seen = trees(self._branches, self._drafts, self.draft_token_num)
        self._drafted = zlib.crc32(seen.tobytes(), zlib.crc32(tokens.tobytes()))
        return tokens, seen

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        super()._prepare_for_speculative_decoding(batch)
        if batch.forward_mode.is_target_verify():
            batch.spec_info.judge = self

    def _not_yet_committed(self, batch: Any) -> list[Tokens]:
        """What the last round accepted, where results are written down one round late."""
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        tokens = batch.spec_info.accept_tokens.tolist()
        lengths = batch.spec_info.accept_lens.tolist()
        width = self.draft_token_num
        return [tuple(tokens[i * width : i * width + length]) for i, length in enumerate(lengths)]

    def judged(self, logits_WV: Any) -> Any:
        """What is kept of the drafts, given the target's logits after every node."""
        ranks = get_tp_group()
        # One rank decides, all learn from what it saw: their logits may differ in a last bit, what they draft may not.
        said: Judgement = ranks.broadcast_object(self._judge(logits_WV) if ranks.is_first_rank else None)
        assert said.drafted == self._drafted, "ranks of one model drafted different tokens"
        nodes, self._feedback = self.draft_token_num, []
        for i, (branch, draft, outcome) in enumerate(zip(self._branches, self._drafts, said.outcomes, strict=True)):
            fed = slice(i * nodes, i * nodes + 1 + len(draft))
            self._feedback.append(Feedback(branch, draft, outcome.path, said.ids[fed], said.logprobs[fed]))
        return tuple(torch.from_numpy(array).to(logits_WV.device) for array in committed(said.outcomes, nodes))

    def _judge(self, logits_WV: Any) -> Judgement:
        nodes = self.draft_token_num
        rows = sampling_rows(self._branches, self._drafts, nodes)
        first = tuple(range(0, nodes * len(self._branches), nodes))
        target = Target(logits_WV, rows, first, feedback_k=self._parts.drafter.feedback_k)
        outcomes = self._parts.acceptance.accept(self._branches, self._drafts, target)
        return Judgement(self._drafted, outcomes, *target.feedback)

    def _update_ngram_corpus(self, batch: Any) -> None:
        del batch
        self._parts.drafter.observe(self._feedback)

    def _first_tokens(self, probs_BV: Any, sampling_info: Any, positions: Any, simple: bool) -> tuple[Any, None]:
        """The token after a prompt, with the noise of its position: all of a generation is its seed's."""
        del positions, simple
        assert sampling_info.sampling_mask_batch_indices is None, "sampling masks are not told with this algorithm"
        branches = [branch_of(request) for request in self._requests]
        rows = SamplingRows.of(
            [branch.params for branch in branches],
            [branch.seed for branch in branches],
            [len(branch.tokens) for branch in branches],
        )
        warm = np.minimum(rows.temperature_T, np.float32(1))  # they have their temperature already
        untempered = SamplingRows(np.ceil(warm), rows.top_k_T, rows.top_p_T, rows.min_p_T, rows.keys_T2)
        tokens = sample(probs_BV.log(), untempered).to(torch.int32)
        return get_tp_group().broadcast(tokens), None


class RecursiveWorker(Worker):
    """The same with the other rule."""

    rule = "recursive_rejection"


def verify(tree: Any, batch: Any, output: Any, grammar_mask: Any = None, *, watermark_state: Any = None) -> Any:
    """In the place of SGLang's own: tokens after nodes, committed lengths, kept nodes; see `trees.Committed`.

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
    return tree.judge.judged(logits_WV)


ngram_worker.NgramCorpus = NoCorpus
ngram_worker.eagle_sample = verify
