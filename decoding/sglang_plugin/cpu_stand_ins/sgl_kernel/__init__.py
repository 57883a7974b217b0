"""Stands in for SGLang's compiled kernels on a CPU: the names that text models import there, in plain torch.

The published wheel of `sgl_kernel` needs CUDA. Tensors called `out_*` or named as results are written in place, as the
kernels do. A name that is not here fails at import, so a new SGLang that needs more says so at once.

Shapes: B requests, N draft nodes of each, S slots of KV.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor


def _cells(rows_B: Tensor, begin_B: Tensor, end_B: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each slot of the table that belongs to `[begin, end)` of a request, by request."""
    sizes_B = (end_B - begin_B).long()
    packed_B = sizes_B.cumsum(0) - sizes_B
    columns_S = torch.arange(int(sizes_B.sum())) + (begin_B.long() - packed_B).repeat_interleave(sizes_B)
    return rows_B.long().repeat_interleave(sizes_B), columns_S


def assign_req_to_token_pool_cpu(
    rows_B: Tensor, table: Tensor, begin_B: Tensor, end_B: Tensor, slots_S: Tensor, width: int
) -> None:
    """Writes packed slots into the table."""
    del width
    cells = _cells(rows_B, begin_B, end_B)
    table[cells] = slots_S[: len(cells[0])].to(table.dtype)


def assign_extend_cache_locs_cpu(
    rows_B: Tensor, table: Tensor, begin_B: Tensor, end_B: Tensor, out_S: Tensor, width: int
) -> None:
    """Reads slots out of the table, packed."""
    del width
    cells = _cells(rows_B, begin_B, end_B)
    out_S[: len(cells[0])] = table[cells].to(out_S.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    rows_B: Tensor, table: Tensor, lengths_B: Tensor, out_S: Tensor, width: int, topk: int, steps: int
) -> None:
    """Reads the `topk * steps` slots after each request's own."""
    assign_extend_cache_locs_cpu(rows_B, table, lengths_B, lengths_B + topk * steps, out_S, width)


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots_S: Tensor, out_S: Tensor) -> None:
    """Packs the slots of accepted nodes to the front; -1 is no node."""
    kept = accepted[accepted >= 0].long()
    out_S[: len(kept)] = slots_S[kept]


def fill_bonus_tokens_cpu(tokens: Tensor, lengths_B: Tensor, out_B: Tensor, stride: int) -> None:
    """The last accepted token of each request."""
    out_B.copy_(tokens.view(-1, stride).gather(1, lengths_B.long()[:, None] - 1)[:, 0])


def copy_all_layer_kv_cache_cpu(addresses_L: Tensor, row_bytes_L: Tensor, to_S: Tensor, from_S: Tensor) -> None:
    """Moves rows of every layer's buffer, given by its address. Reads all before it writes any: rows may overlap."""
    into, out_of = to_S.long().numpy(), from_S.long().numpy()
    if not len(into):
        return
    most = 1 + int(max(into.max(), out_of.max()))
    for address, size in zip(addresses_L.tolist(), row_bytes_L.tolist(), strict=True):
        rows = np.ctypeslib.as_array((ctypes.c_uint8 * (most * size)).from_address(address)).reshape(most, size)
        rows[into] = rows[out_of]  # the right side is a copy


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follows each request's tree from its root for as long as a child is the token the target says."""
    child_BN, sibling_BN = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    token_BN, said_BN, row_BN = candidates.tolist(), target_predict.tolist(), retrive_index.tolist()
    for b in range(len(token_BN)):
        path = [0]
        while len(path) < accept_index.shape[1]:
            said, node = said_BN[b][path[-1]], child_BN[b][path[-1]]
            while node >= 0 and token_BN[b][node] != said:
                node = sibling_BN[b][node]
            if node < 0:
                break
            path.append(node)
        for place, node in enumerate(path):
            accept_index[b, place] = row_BN[b][node]
            predicts[row_BN[b][node]] = said_BN[b][node]
        accept_token_num[b] = len(path) - 1


def build_tree_kernel_efficient_cpu(
    groups: Tensor,
    selected_BM: Tensor,
    lengths_B: Tensor,
    out_mask: Tensor,
    out_positions: Tensor,
    out_rows_BN: Tensor,
    out_child_BN: Tensor,
    out_sibling_BN: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int,
) -> None:
    """Builds trees of a draft model's candidates, of which each has M = N - 1 and its last committed token.

    Candidate c is in group `c // topk`; group 0 is below the last committed token, and group g > 0 below the candidate
    `groups[b, g]`. `selected_BM` are the candidates that are nodes, in any order.
    """
    del depth
    assert mask_mode == 1, "only the mask between the nodes of a tree"
    parents_BN = []
    for group, selected in zip(groups.tolist(), selected_BM.tolist(), strict=True):
        node_of = {candidate: 1 + i for i, candidate in enumerate(selected)}
        parents = [0 if candidate < topk else node_of[group[candidate // topk]] for candidate in selected]
        parents_BN.append([-1, *parents])
    mask_BNN = torch.zeros(len(parents_BN), nodes, nodes, dtype=torch.bool)
    child_BN, sibling_BN = ([[-1] * nodes for _ in parents_BN] for _ in range(2))
    for seen_NN, parents, child, sibling in zip(mask_BNN, parents_BN, child_BN, sibling_BN, strict=True):
        for node in range(nodes):
            above = node
            while above >= 0:
                seen_NN[node, above] = True
                above = parents[above]
        for node in reversed(range(1, nodes)):  # so that the eldest child is noted last
            sibling[node] = child[parents[node]]
            child[parents[node]] = node
    out_mask[: mask_BNN.numel()] = mask_BNN.flatten().to(out_mask.dtype)
    out_positions.copy_((mask_BNN.sum(-1) - 1 + lengths_B[:, None]).flatten())
    out_rows_BN.copy_(torch.arange(len(parents_BN) * nodes).view(len(parents_BN), nodes))
    out_child_BN.copy_(torch.tensor(child_BN))
    out_sibling_BN.copy_(torch.tensor(sibling_BN))
