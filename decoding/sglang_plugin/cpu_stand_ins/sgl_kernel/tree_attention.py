"""A plugin of SGLang: attention over draft trees for its plain torch backend, which knows only texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    HookRegistry.register(f"{backend}.forward_extend", _attend, HookType.AROUND)


def _attend(
    original: Callable[..., Any], self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True
) -> Any:
    if not batch.forward_mode.is_target_verify():
        return original(self, q, k, v, layer, batch, save_kv_cache)
    import torch
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    if save_kv_cache and k is not None:
        place = KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc)
        self.token_to_kv_pool.set_kv_buffer(layer, place, k, v)
    keys, values = (
        buffer(layer.layer_id).to(q.dtype)
        for buffer in (self.token_to_kv_pool.get_key_buffer, self.token_to_kv_pool.get_value_buffer)
    )
    nodes = batch.spec_info.draft_token_num
    q_BHNd = q.view(-1, nodes, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
    seen_BNN = batch.spec_info.custom_mask[: len(q_BHNd) * nodes * nodes].view(-1, nodes, nodes)
    out = []
    for q_HNd, seen_NN, row, length in zip(
        q_BHNd, seen_BNN, batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True
    ):
        slots = self.req_to_token_pool.req_to_token[row, : length + nodes].long()
        # a tree of one node attends to everything
        seen = torch.cat([torch.ones(nodes, length, dtype=torch.bool), seen_NN.bool()], dim=1) if nodes > 1 else None
        attended = torch.nn.functional.scaled_dot_product_attention(
            q_HNd[None],
            keys[slots].transpose(0, 1)[None],
            values[slots].transpose(0, 1)[None],
            attn_mask=seen,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        out.append(attended[0].transpose(0, 1).reshape(nodes, -1))
    return torch.cat(out)
