"""SGLang's workers with a draft model, whose trees are merged with n-grams before they are verified by our rule.

SGLang drafts, runs both models and commits; the draft model reads what was accepted as it does in SGLang's own
algorithms. Three functions are replaced when this module is imported, once per process:

organize_draft_results    keeps all tokens that the draft model considered, not the likeliest N - 1
build_eagle_verify_input  merges them with n-grams, before SGLang builds the mask of the tree
eagle_sample              our acceptance rule
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.speculative import eagle_worker_common, eagle_worker_v2
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2
from torch import Tensor

from decoding.sglang_plugin.candidates import CandidateLists, CandidateTrees, encode_trees
from decoding.sglang_plugin.parts import SpeculativeParts, make_fused_parts
from decoding.sglang_plugin.rounds import PlannedRound
from decoding.sglang_plugin.server_speculation import ServerSpeculation, verify_tree_batch
from decoding.sglang_plugin.settings import PluginSettings

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import GenerationBatchResult
    from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput


class FusedSpeculation(ServerSpeculation):
    """Coupled acceptance over merged trees, before a worker of SGLang with a draft model in the list of bases."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        settings = PluginSettings.from_environment()
        self._agree, self._candidates = settings.draft_agree, CandidateTrees()
        self.begin_speculation(settings, self.make_parts(), None)

    def make_parts(self) -> SpeculativeParts:
        nodes, levels = self.speculative_num_draft_tokens - 1, self.speculative_num_steps
        return make_fused_parts(nodes, self._candidates, levels, self._agree)

    def forward_batch_generation(
        self, batch: ScheduleBatch, *arguments: object, **named: object
    ) -> GenerationBatchResult:
        self.note_batch(batch)
        if not batch.forward_mode.is_decode():
            return super().forward_batch_generation(batch, *arguments, **named)
        batch.spec_info.verifier = self  # for `build_merged_input`, which gets no worker
        result = super().forward_batch_generation(batch, *arguments, **named)
        self.end_round()
        return result

    def merge_candidates(self, batch: ScheduleBatch, lists: CandidateLists) -> PlannedRound:
        """Plans the round whose candidates these are. *Mutates*."""
        # as the clocks: what the ranks computed may differ in the last bit, what they draft must not
        self._candidates.set_round(get_tp_group().broadcast_object(lists))
        return self.plan_round(self.reader.to_branches(batch.reqs))


class FusedEagleWorker(FusedSpeculation, EAGLEWorkerV2):  # type: ignore[misc]
    """Merges the trees of an EAGLE or MTP head."""


class FusedStandaloneWorker(FusedSpeculation, StandaloneWorkerV2):  # type: ignore[misc]
    """Merges the trees of a small model."""


def list_candidates(
    scores: Sequence[Tensor], tokens: Sequence[Tensor], parents: Sequence[Tensor], num_draft_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Replaces SGLang's `organize_draft_results`; returns the fields of `CandidateLists` as tensors."""
    del num_draft_tokens
    # the last step's own choice has no group below it
    return (
        torch.cat(list(parents[:-1]), dim=1),
        torch.cat(list(scores), dim=1).flatten(1),
        torch.cat(list(tokens), dim=1),
    )


_build_input = eagle_worker_v2.build_eagle_verify_input


def build_merged_input(
    batch: ScheduleBatch,
    draft_input: EagleDraftInput,
    parents: Tensor,
    scores: Tensor,
    tokens: Tensor,
    draft_probs: Tensor | None,
    *,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    **named: object,
) -> EagleVerifyInput:
    """Replaces SGLang's `build_eagle_verify_input`; takes the results of `list_candidates`."""
    worker: FusedSpeculation = draft_input.verifier
    lists = CandidateLists(*(part.cpu().numpy() for part in (parents.long(), scores.float(), tokens.long())))
    trees = encode_trees(worker.merge_candidates(batch, lists).drafts, num_draft_tokens)
    verify_input = _build_input(
        batch,
        draft_input,
        *(torch.from_numpy(part).to(tokens.device) for part in (trees.parents, trees.selected, trees.tokens)),
        draft_probs,
        topk=trees.group_size,
        num_steps=trees.depth,
        num_draft_tokens=num_draft_tokens,
        **named,
    )
    # what attention backends read is the draft worker's, not the form of the tree
    verify_input.topk, verify_input.spec_steps, verify_input.verifier = topk, num_steps, worker
    return verify_input


eagle_worker_v2.organize_draft_results = list_candidates
eagle_worker_v2.build_eagle_verify_input = build_merged_input
eagle_worker_common.eagle_sample = verify_tree_batch
