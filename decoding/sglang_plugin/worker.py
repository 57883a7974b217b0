"""SGLang's n-gram worker with a drafter and an acceptance rule of `decoding`; SGLang runs forward passes and commits.

Importing this module replaces two more names of SGLang, once per process, and only in a process that uses them.
`hooks` checks before that SGLang has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.ngram_info import NgramVerifyInput

from decoding.core import Tokens
from decoding.sglang_plugin.adaptive_nodes import AdaptiveNodes, list_sizes
from decoding.sglang_plugin.parts import SpeculativeParts, make_parts
from decoding.sglang_plugin.server_speculation import ServerSpeculation, verify_tree_batch
from decoding.sglang_plugin.settings import PluginSettings
from decoding.sglang_plugin.widths import RoundWidth, installed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import GenerationBatchResult


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
        """Does nothing: `ServerSpeculation.clear_cache_pool` replaces the drafter."""


class CoupledWorker(ServerSpeculation, ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """Worker with coupled acceptance.

    A round is `forward_batch_generation`, which plans and drafts, then SGLang's forward pass, `verify_tree_batch` and
    `_update_ngram_corpus`.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        assert ngram_worker.eagle_sample is verify_tree_batch, "another plugin replaced eagle_sample"
        settings, parts = PluginSettings.from_environment(), self.make_parts()
        adaptive = AdaptiveNodes(_list_sizes(parts)) if settings.controller == "adaptive" else None
        self.begin_speculation(settings, parts, adaptive)

    def make_parts(self) -> SpeculativeParts:
        return make_parts(self.draft_token_num - 1, self.rule)

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        # The graphs of the model runner exist from here on.
        usual = RoundWidth.read_worker(self)
        self._widths = {usual.nodes: usual}
        if self._rounds.adaptive is not None:
            for nodes in (0, *self._rounds.adaptive.sizes):
                if 1 + nodes != usual.nodes:
                    self._widths[1 + nodes] = RoundWidth.build(self, 1 + nodes)

    def forward_batch_generation(
        self, batch: ScheduleBatch, *arguments: object, **named: object
    ) -> GenerationBatchResult:
        self.note_batch(batch)
        if not batch.forward_mode.is_decode():
            return super().forward_batch_generation(batch, *arguments, **named)
        planned = self.plan_round(self.reader.to_branches(batch.reqs, self._late_tokens(batch)))
        usual = self._widths[self.draft_token_num]
        with installed(self, self._widths[planned.nodes], usual):
            result = super().forward_batch_generation(batch, *arguments, **named)
        if planned.nodes < usual.nodes:
            result.speculative_output_stride = planned.nodes
            result.next_draft_input = _widen_tokens(result.next_draft_input, planned.nodes, usual.nodes)
        return result

    def _prepare_draft_tokens(self, batch: ScheduleBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        del batch
        assert self._planned is not None
        return self._planned.trees.tokens, self._planned.trees.visible

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

    def _update_ngram_corpus(self, batch: ScheduleBatch) -> None:
        del batch
        self.end_round()


class RecursiveWorker(CoupledWorker):
    """Worker with recursive rejection sampling."""

    rule = "recursive_rejection"


def _list_sizes(parts: SpeculativeParts) -> tuple[int, ...]:
    return list_sizes(parts.most_nodes) if parts.may_cut else (parts.most_nodes,)


def _widen_tokens(draft_input: NgramVerifyInput, nodes: int, width: int) -> NgramVerifyInput:
    """Returns the input of the next round with `width` accepted tokens of each request instead of `nodes`."""
    tokens = torch.nn.functional.pad(draft_input.accept_tokens.view(-1, nodes), (0, width - nodes))
    return NgramVerifyInput(
        draft_token_num=width,
        new_seq_lens=draft_input.new_seq_lens,
        accept_tokens=tokens.flatten(),
        accept_lens=draft_input.accept_lens,
    )


ngram_worker.NgramCorpus = EmptyCorpus
ngram_worker.eagle_sample = verify_tree_batch
