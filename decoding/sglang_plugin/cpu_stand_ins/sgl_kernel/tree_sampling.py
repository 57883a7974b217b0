"""A plugin of SGLang: sampling over draft trees, which it does on GPUs only; on a CPU it keeps the likeliest tokens,
whatever the temperature.

SGLang's own code makes the probabilities and draws the random numbers. What is replaced is its compiled rule:
a random number per node accepts the first child at which the target's probabilities, summed over the children so far,
exceed it; where none does, the token is the target's without those children. What is committed is distributed as the
target has it, however the tree was made.

Shapes: B requests, N draft nodes of each, R rows of V probabilities.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.speculative import eagle_utils

    ours = {
        "_verify_uses_greedy": uses_greedy,
        "tree_speculative_sampling_target_only": sample_tree,
        "top_k_renorm_prob": keep_top_k,
        "top_p_renorm_prob": keep_top_p,
    }
    for name, part in ours.items():
        assert hasattr(eagle_utils, name), f"SGLang has no {name} any more"
        setattr(eagle_utils, name, part)


def uses_greedy(*, is_all_greedy: bool, **platform: bool) -> bool:
    """Whether the likeliest tokens are kept: where all requests want them, on any platform."""
    del platform
    return is_all_greedy


def sample_tree(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    **unused: Any,
) -> None:
    """Writes the tokens after accepted nodes, the rows of these and how many of them were drafted.

    A token that stands twice below a node, as padding does, is one child.
    """
    del unused
    assert threshold_single == threshold_acc == 1.0, "other thresholds are lossy, and not here"
    child_BN, sibling_BN = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    token_BN, row_BN, uniform_BN = candidates.tolist(), retrive_index.tolist(), uniform_samples.tolist()
    for b, final in enumerate(uniform_samples_for_final_sampling.tolist()):
        path = [0]
        while True:
            at = path[-1]
            p_V = target_probs[b, at].double()
            passed, refused = 0.0, set()
            node = child_BN[b][at]
            while node >= 0:
                token = token_BN[b][node]
                if token not in refused:
                    passed += float(p_V[token])
                    if uniform_BN[b][at] < passed:
                        break
                    refused.add(token)
                node = sibling_BN[b][node]
            if node < 0:
                break
            predicts[row_BN[b][at]] = token_BN[b][node]
            path.append(node)
        p_V[sorted(refused)] = 0.0
        cumulated_V = p_V.cumsum(0)
        drawn = int(torch.searchsorted(cumulated_V, final * cumulated_V[-1], right=True))
        predicts[row_BN[b][at]] = min(drawn, int(p_V.nonzero().max()))
        accept_index[b, : len(path)] = torch.tensor([row_BN[b][node] for node in path])
        accept_token_num[b] = len(path) - 1


def keep_top_k(p_RV: Tensor, k_R: Tensor) -> Tensor:
    """The k most likely tokens of each row, ties of the last included, as a distribution."""
    ordered_RV = p_RV.sort(dim=-1, descending=True).values
    least_R1 = ordered_RV.gather(-1, (k_R.long().clamp(max=p_RV.shape[-1]) - 1)[:, None])
    kept_RV = torch.where(p_RV >= least_R1, p_RV, 0.0)
    return kept_RV / kept_RV.sum(-1, keepdim=True)


def keep_top_p(p_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """The fewest likeliest tokens of each row that hold its share, as a distribution."""
    ordered_RV, order_RV = p_RV.sort(dim=-1, descending=True)
    before_RV = ordered_RV.cumsum(-1) - ordered_RV
    kept_RV = torch.where(before_RV < top_p_R[:, None], ordered_RV, 0.0)
    kept_RV = torch.zeros_like(p_RV).scatter(-1, order_RV, kept_RV)
    return kept_RV / kept_RV.sum(-1, keepdim=True)
