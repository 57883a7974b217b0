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

from decoding.speculation.acceptance.deepest_path import NodeRows, verify_deepest_paths
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

    def require_hidden_size(self, size: int) -> None:
        """Raises: ValueError where the head is for hidden states of another size."""
        if size != len(self.weight_D):
            raise ValueError(
                f"acceptance=judge: the head reads hidden states of {len(self.weight_D)} numbers, and the target model "
                f"has {size}; train one for it: reason train stages=[judge_head]"
            )

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        """Returns one result per branch. Raises: ValueError where the head is for hidden states of another size."""
        import torch  # here, as above

        from decoding.device_arrays import copy_numbers

        hidden_WD = target.hidden_WD
        assert hidden_WD is not None, "a round keeps the hidden states of its output rows"
        self.require_hidden_size(hidden_WD.shape[1])
        nodes = NodeRows.collect(drafts, target)
        (weight_D,) = copy_numbers([self.weight_D], hidden_WD.device)
        right_N = torch.sigmoid(hidden_WD[nodes.own_N].float() @ weight_D + self.bias)
        return verify_deepest_paths(drafts, target, nodes, target.sampled, right_N > self.threshold)
