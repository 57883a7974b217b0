"""Samples the target's token as if there were no draft, and accepts the child with that token.

Tokens and accepted nodes are distributed as if the children were tried one by one, each with its probability under the
residual of p (EAGLE, vLLM's n-gram drafts, SGLang's target-only rule): a child is accepted with probability p.

Lossless for any draft that is independent of this uniform stream: most likely tokens, merged sources, draws that were
dropped, reordered or made with reused noise. So the rule needs no q, and q would not raise its acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.acceptance.uniform_stream import UniformStream
from decoding.speculation.acceptance.verify import P, TreeRule
from decoding.speculation.draft import RANDOM_SAMPLING, Draft, DraftSampling, VerifiedPath


@dataclass(frozen=True)
class PointMass(TreeRule):
    """Target-only acceptance: q taken as 1 on every child."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("likely", *RANDOM_SAMPLING, "coupled")
    needs_sampling_record: ClassVar[bool] = False

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        # One number per node of the path, drawn before the children are compared: they must not influence the token.
        return draft.follow_path(lambda node: stream.sample_index(p(node)))
