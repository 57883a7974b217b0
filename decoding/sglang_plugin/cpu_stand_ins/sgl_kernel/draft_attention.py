"""A plugin of SGLang: attention of a draft model over its paths, for the plain torch backend, which knows only texts.

SGLang drafts step by step with K paths per request. The KV of path k is in a row of slots of its own, after those of
the committed tokens.

Shapes: B requests, K paths of each, H heads, d channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    HookRegistry.register(f"{factory}.create_decode_backend", _make_steps, HookType.AROUND)
    # without one of its own, the draft model reads the accepted tokens as any text
    HookRegistry.register(f"{factory}.create_draft_extend_backend", _make_none, HookType.AROUND)


class DraftSteps:
    """The attention of each step of a draft."""

    def __init__(self, attn_backends: list[Any]) -> None:
        self.attn_backends = attn_backends

    def init_forward_metadata(self, batch: Any) -> None:
        """Does nothing: the steps read the batch."""


def _make_none(original: Callable[..., Any], self: Any) -> None:
    del original, self


def _make_steps(original: Callable[..., Any], self: Any) -> DraftSteps:
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    del original
    steps, topk = self.speculative_num_steps, self.topk

    class DraftStep(TorchNativeAttnBackend):  # type: ignore[misc]
        def __init__(self, runner: Any, step: int) -> None:
            super().__init__(runner)
            self._step = step

        def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True) -> Any:
            if save_kv_cache and k is not None:
                place = KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc)
                self.token_to_kv_pool.set_kv_buffer(layer, place, k, v)
            keys, values = (
                buffer(layer.layer_id).to(q.dtype)
                for buffer in (self.token_to_kv_pool.get_key_buffer, self.token_to_kv_pool.get_value_buffer)
            )
            q_BKHd = q.view(-1, topk, layer.tp_q_head_num, layer.qk_head_dim)
            out = []
            for q_KHd, row, length in zip(
                q_BKHd, batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True
            ):
                slots = self.req_to_token_pool.req_to_token[row].long()
                for path, q_Hd in enumerate(q_KHd):
                    first = length + path * steps
                    own = torch.cat([slots[:length], slots[first : first + self._step + 1]])
                    attended = torch.nn.functional.scaled_dot_product_attention(
                        q_Hd[None, :, None],
                        keys[own].transpose(0, 1)[None],
                        values[own].transpose(0, 1)[None],
                        scale=layer.scaling,
                        enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                    )
                    out.append(attended[0, :, 0].flatten())
            return torch.stack(out)

    return DraftSteps([DraftStep(self.draft_model_runner, step) for step in range(steps - 1)])
