"""Samples the target's token as if there were no draft, and accepts the child with that token.

Tokens and accepted nodes are distributed as if the children were tried one by one, each with its probability under the
residual of p (EAGLE, vLLM's n-gram drafts, SGLang's target-only rule): a child is accepted with probability p.

Lossless for any draft that is independent of this uniform stream: most likely tokens, merged sources, draws that were
dropped, reordered or made with reused noise. So the rule needs no q, and q would not raise its acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decoding.speculation.acceptance.given_tokens import match_tokens
from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, UniformStream
from decoding.speculation.acceptance.verify import P, TreeRule
from decoding.speculation.draft import RANDOM_SAMPLING, Draft, DraftSampling, VerifiedPath, VerifyResult
from decoding.speculation.interfaces import Branch

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits


@dataclass(frozen=True)
class PointMass(TreeRule):
    """Target-only acceptance: q taken as 1 on every child."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("likely", *RANDOM_SAMPLING, "coupled")
    needs_sampling_record: ClassVar[bool] = False

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        # One number per node of the path, drawn before the children are compared: they must not influence the token.
        return draft.follow_path(lambda node: stream.sample_index(p(node)))

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        """Returns one result per branch. On a GPU a token is drawn after every node, so that it is waited for once.

        The uniform number that decides after a node is the one of its depth, as on a CPU.
        """
        if target.logits_WV.is_cpu:
            return super().verify_drafts(branches, drafts, target)
        from decoding.speculation.device_probabilities import IdsOfRows, draw_tokens  # imports torch

        uniforms_W = np.array(
            [u for branch, draft in zip(branches, drafts, strict=True) for u in _list_uniforms(branch, draft)]
        )
        rows_W, none = range(len(uniforms_W)), np.zeros(0, dtype=np.int64)
        every_row = IdsOfRows.collect(rows_W, [none for _ in rows_W])
        tokens_W = draw_tokens(target.log_p, every_row, np.zeros(0), np.ones(len(rows_W)), uniforms_W)
        tokens, logprobs = target.read_numbers(tokens_W, target.select_logprobs(tokens_W))
        return match_tokens(drafts, target.first_rows, tokens.tolist(), logprobs.tolist())


def _list_uniforms(branch: Branch, draft: Draft) -> list[float]:
    """Returns the uniform numbers that decide after the root and after each node."""
    stream = SeededUniformStream(branch.seed, len(branch.tokens))
    by_depth = [stream.next_uniform() for _ in range(1 + max(draft.depths, default=0))]
    return [by_depth[depth] for depth in (0, *draft.depths)]
