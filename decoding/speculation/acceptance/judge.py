"""Judge Decoding (Bachmann et al. 2025, arXiv 2501.19309): a linear head says whether a refused draft token is right.

The head reads the target's last hidden state at the draft token, so it knows the token and all before it. A token is
accepted if the head finds it right with a probability above the threshold, or if it is the target's own; of all paths
of accepted tokens the longest is committed, and after it a token of the target's own.

Lossy at every temperature: the text is partly the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from decoding.speculation.acceptance.deepest_path import choose_deepest_paths, list_parent_rows
from decoding.speculation.acceptance.verify import add_logprobs
from decoding.speculation.draft import Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import Branch
from decoding.validation import require_share

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits


@dataclass(frozen=True, eq=False)
class Judge:
    """Implements `AcceptanceRule`. Lossy.

    weight_D, bias   the head: logit of "right" = hidden state `[D]` times weight, plus bias
    threshold        least probability of "right" of an accepted token that is not the target's own

    Raises: ValueError for a threshold outside [0, 1].
    """

    weight_D: npt.NDArray[np.float32]
    bias: float
    threshold: float = 0.5
    lossless: ClassVar[bool] = False
    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("likely", "without_replacement", "iid", "coupled")

    def __post_init__(self) -> None:
        require_share("threshold", self.threshold)

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        """Returns one result per branch. Raises: ValueError where the head is for hidden states of another size."""
        import torch  # here, as above

        hidden_WD = target.hidden_WD
        assert hidden_WD is not None, "a round keeps the hidden states of its output rows"
        if hidden_WD.shape[1] != len(self.weight_D):
            raise ValueError(
                f"acceptance=judge: the head reads hidden states of {len(self.weight_D)} numbers, and the target model "
                f"has {hidden_WD.shape[1]}; train one for it: reason train stages=[judge_head]"
            )
        next_tokens, log_p_WV = target.tokens.tolist(), target.log_p
        node_row_N = np.array(
            [
                first + 1 + node
                for draft, first in zip(drafts, target.first_rows, strict=True)
                for node in range(len(draft))
            ],
            dtype=np.int64,
        )
        parent_row_N = list_parent_rows(drafts, target.first_rows)
        tokens_N = np.array([token for draft in drafts for token in draft.tokens], dtype=np.int64)
        rows, parents, tokens = (torch.from_numpy(i).to(hidden_WD.device) for i in (node_row_N, parent_row_N, tokens_N))
        weight_D = torch.from_numpy(self.weight_D).to(hidden_WD.device)
        right_N = torch.sigmoid(hidden_WD[rows].float() @ weight_D + self.bias)
        paths = choose_deepest_paths(
            drafts,
            target.first_rows,
            next_tokens,
            (right_N > self.threshold).cpu().numpy(),
            log_p_WV[parents, tokens].double().cpu().numpy(),
        )
        return add_logprobs(paths, drafts, target)
