"""Stands in for SGLang's compiled kernels on a CPU: the names that text models import there, in plain torch.

The published wheel of `sgl_kernel` needs CUDA. Tensors called `out_*` or named as results are written in place, as the
kernels do. A name that is not here fails at import, so a new SGLang that needs more says so at once.

Shapes: B requests, N draft nodes of each, S slots of KV.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from torch import Tensor


def _spans(rows_B: Tensor, begin_B: Tensor, end_B: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """For each request its row in the slot table, the columns there, and where these lie when packed."""
    packed = 0
    for row, begin, end in zip(rows_B.tolist(), begin_B.tolist(), end_B.tolist(), strict=True):
        yield row, slice(begin, end), slice(packed, packed + end - begin)
        packed += end - begin


def assign_req_to_token_pool_cpu(
    rows_B: Tensor, table: Tensor, begin_B: Tensor, end_B: Tensor, slots_S: Tensor, width: int
) -> None:
    """Writes packed slots into the table."""
    del width
    for row, columns, packed in _spans(rows_B, begin_B, end_B):
        table[row, columns] = slots_S[packed].to(table.dtype)


def assign_extend_cache_locs_cpu(
    rows_B: Tensor, table: Tensor, begin_B: Tensor, end_B: Tensor, out_S: Tensor, width: int
) -> None:
    """Reads slots out of the table, packed."""
    del width
    for row, columns, packed in _spans(rows_B, begin_B, end_B):
        out_S[packed] = table[row, columns].to(out_S.dtype)


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
    for address, size in zip(addresses_L.tolist(), row_bytes_L.tolist(), strict=True):
        rows = [ctypes.string_at(address + slot * size, size) for slot in from_S.tolist()]
        for slot, row in zip(to_S.tolist(), rows, strict=True):
            ctypes.memmove(address + slot * size, row, size)


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


def build_tree_kernel_efficient_cpu(*arguments: object, **named: object) -> None:
    """Trees of a draft model, which nothing here has."""
    raise NotImplementedError("this stand-in has no trees of draft models")
