"""Draft trees given by who is whose ancestor, as links that verification follows."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    mask: Tensor,
    lengths_B: Tensor,
    out_positions: Tensor,
    out_rows_BN: Tensor,
    out_child_BN: Tensor,
    out_sibling_BN: Tensor,
    requests: int,
    nodes: int,
) -> None:
    """Positions `[B * N]`; rows of the nodes, their first children and their next siblings, all `[B, N]`, -1 for none.

    `mask` `[B * N * N]` says for each node which nodes it sees: its ancestors and itself.
    """
    order_N = torch.arange(nodes)
    above_BNN = mask[: requests * nodes * nodes].view(requests, nodes, nodes).bool() & (order_N < order_N[:, None])
    out_positions.copy_((above_BNN.sum(-1) + lengths_B[:, None]).flatten())
    out_rows_BN.copy_(torch.arange(requests * nodes).view(requests, nodes))
    parent_BN = torch.where(above_BNN.any(-1), (above_BNN * order_N).amax(-1), -1)
    # lists: a number of a tensor takes a hundred times as long to read or write
    child_BN, sibling_BN = ([[-1] * nodes for _ in range(requests)] for _ in range(2))
    for parents, child, sibling in zip(parent_BN.tolist(), child_BN, sibling_BN, strict=True):
        for node in reversed(range(1, nodes)):  # so that the eldest child is noted last, with its siblings behind it
            if parents[node] >= 0:
                sibling[node] = child[parents[node]]
                child[parents[node]] = node
    out_child_BN.copy_(torch.tensor(child_BN))
    out_sibling_BN.copy_(torch.tensor(sibling_BN))
