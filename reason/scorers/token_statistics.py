"""Reducers of the outputs of a language model: statistics of the token that followed, from the logits before it.

They run on the device of the logits, which stay there: of a vocabulary of 152 thousand tokens, one to three numbers a
token are copied to the host.

Shapes: W rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_ratio(logits_WV: Tensor, next_ids_W: Tensor) -> Tensor:
    """Returns log(p(token) / max p), `[W, 1]`.

    >>> log_ratio(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([1])).round(decimals=3).tolist()
    [[-0.6930000185966492]]
    """
    return logits_WV.gather(1, next_ids_W[:, None]) - logits_WV.max(dim=1, keepdim=True).values


def token_statistics(logits_WV: Tensor, next_ids_W: Tensor) -> Tensor:
    """Returns log p(token), log max p and entropy in nats, `[W, 3]`.

    >>> token_statistics(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([1])).round(decimals=2).tolist()
    [[-0.6899999976158142, -0.6899999976158142, 0.6899999976158142]]
    """
    log_p_WV = logits_WV.log_softmax(dim=1)
    entropy_W = torch.special.entr(log_p_WV.exp()).sum(dim=1)
    chosen_W1 = log_p_WV.gather(1, next_ids_W[:, None])
    return torch.cat([chosen_W1, log_p_WV.max(dim=1, keepdim=True).values, entropy_W[:, None]], dim=1)
