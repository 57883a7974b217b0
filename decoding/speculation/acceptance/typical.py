"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1): accepts what the target finds likely enough.

A draft token is accepted if its probability p is above min(epsilon, delta * exp(-H)), with the entropy H of p in nats:
where the target is sure, only its own choice passes; where it hesitates, much does. Of all paths whose tokens pass the
longest is committed, and after it a token of the target's own.

At temperature 0 the result is greedy decoding, above it is lossy: p is not matched, not even where all tokens pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decoding.speculation.acceptance.deepest_path import NodeRows, verify_deepest_paths
from decoding.speculation.draft import Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import Branch
from decoding.validation import require_choice, require_share

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits

NEXT_TOKENS = ("sampled", "greedy")
"""Values of the setting `next_token`."""


@dataclass(frozen=True)
class Typical:
    """Implements `AcceptanceRule`. Lossy above temperature 0.

    epsilon      probability above which a token always passes
    delta        a token also passes above `delta * exp(-H)`; the paper has the square root of `epsilon`
    next_token   the token after the accepted ones: sampled as in plain decoding, or greedy as in the paper, where texts
                 of one prompt then differ little

    Raises: ValueError naming the setting.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    next_token: str = "sampled"
    lossless: ClassVar[bool] = False
    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("likely", "without_replacement", "iid", "coupled")

    def __post_init__(self) -> None:
        # below 1: else the most likely token might not pass at temperature 0
        require_share("epsilon", self.epsilon, above_zero=True, below_one=True)
        require_share("delta", self.delta, above_zero=True, below_one=True)
        require_choice("next_token", self.next_token, NEXT_TOKENS)

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        import torch  # here, as above

        log_p_WV, nodes = target.log_p, NodeRows.collect(drafts, target)
        next_tokens_W = target.sampled if self.next_token == "sampled" else log_p_WV.argmax(-1)
        entropy_W = torch.special.entr(log_p_WV.exp()).sum(-1)
        threshold_W = (self.delta * (-entropy_W).exp()).clamp(max=self.epsilon)
        passes_N = log_p_WV[nodes.parent_N, nodes.token_N].exp() > threshold_W[nodes.parent_N]
        return verify_deepest_paths(drafts, target, nodes, next_tokens_W, passes_N)
