"""A transformers checkpoint as a Backend: packed rows in, hidden states and a head's output out.

Which forward runs: not transformers' own modules but the fused stack of `fused.py`, over the checkpoint's own
weights (equality with transformers is tested). Measured at the bundled size, CPU, one thread of a busy machine,
calls paired back to back, median of 200: transformers' modules take 1.7-1.8 times as long for 1 row, 1.5-1.7 for
4 and 16, 1.5 for 64 (quartiles within 0.2, once 0.5). The engine benchmark measures it again as
`modules_vs_fused`. The gain shrinks as the matrix products grow; for large models do not expect it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.model.attention import place
from decoding.model.backend import RowBatch
from decoding.model.fused_decoder import FusedDecoder
from decoding.threads import helped

Head = Callable[[Tensor], Tensor]
Device = Literal["auto", "cpu", "cuda"] | str
DType = Literal["auto", "float32", "float64", "bfloat16"] | str


def pick_device(device: Device) -> torch.device:
    """`auto` is CUDA where there is one. Raises ValueError for a device this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    picked = torch.device(device)
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device")
    return picked


def pick_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on CPU, where bfloat16 is slower than it is small."""
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
    known["auto"] = known["bfloat16" if device.type == "cuda" else "float32"]
    if dtype not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)}; got {dtype!r}")
    return known[dtype]


class HFBackend:
    """Implements `decoding.model.backend.Backend` for a model of the Qwen2, Qwen3 and Llama families.

    model   `*ForCausalLM`, `*ForTokenClassification`, or a bare decoder (then `head` says what to make of
            its hidden states; without one they are the output)
    head    replaces the model's own head: `[W, hidden] -> [W, outputs]`, on the same device and in the same dtype
    """

    def __init__(self, model: Any, *, head: Head | None = None, device: Device = "auto", dtype: DType = "auto") -> None:
        place_on = pick_device(device)
        model = model.to(place_on, pick_dtype(dtype, place_on)).eval().requires_grad_(False)
        self._decoder = FusedDecoder(getattr(model, "model", model))
        own = getattr(model, "lm_head", None) or getattr(model, "score", None)
        self._head = head or _as_head(own)
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.dtype, self.device = self._decoder.dtype, self._decoder.device
        on_cpu = self.device.type == "cpu"
        self._weights = self._decoder.weights_count if on_cpu else 0
        self._head_weights = own.weight.numel() if on_cpu and own is not None and head is None else 0
        d = self._decoder
        self.page_bytes = 2 * d.layers_count * d.kv_heads * d.head_size * self.dtype.itemsize

    @classmethod
    def load(
        cls,
        path: str,
        *,
        kind: Literal["lm", "classifier", "hidden"] = "lm",
        head: Head | None = None,
        device: Device = "auto",
        dtype: DType = "auto",
    ) -> HFBackend:
        """From a local folder or the hub. `classifier` is a token-classification head, `hidden` the bare decoder."""
        import transformers

        auto = {
            "lm": transformers.AutoModelForCausalLM,
            "classifier": transformers.AutoModelForTokenClassification,
            "hidden": transformers.AutoModel,
        }[kind]
        wanted = pick_dtype(dtype, pick_device(device))
        return cls(auto.from_pretrained(path, dtype=wanted), head=head, device=device, dtype=dtype)

    @property
    def attention_seconds(self) -> float:
        """Seconds spent in attention; on CUDA only the time to launch it, so 0 is reported."""
        return self._decoder.attention_seconds if self.device.type == "cpu" else 0.0

    def new_pool(self, pages: int) -> Tensor:
        """`[layers, kv_heads, 1 + pages, 2 * head_dim]`, a token's key and value side by side.

        Heads come before pages, so that a gather of pages is already laid out for a product per head.
        """
        d = self._decoder
        shape = (d.layers_count, d.kv_heads, pages + 1, 2 * d.head_size)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: RowBatch, pool: Tensor) -> Tensor:
        d = self._decoder
        blocks = [
            place(
                block, kv_heads=d.kv_heads, queries_per_kv=d.heads // d.kv_heads, device=self.device, dtype=self.dtype
            )
            for block in batch.blocks
        ]
        tokens_T, positions_T, slots_T, wanted_W = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.tokens_T, batch.positions_T, batch.slots_T, batch.wanted_W)
        )
        wanted = None if len(batch.wanted_W) == len(batch.tokens_T) else wanted_W
        cos_sin = d.rotary_table(positions_T, int(batch.positions_T.max()))
        with helped(self._weights, len(tokens_T)):
            return d.forward(tokens_T, cos_sin, slots_T, wanted, blocks, pool)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        with helped(self._head_weights, len(hidden)):
            return self._head(hidden)


def _as_head(linear: Any | None) -> Head:
    """A linear layer as a function of hidden states; without one they are what comes out."""
    if linear is None:
        return lambda hidden: hidden
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    return lambda hidden: F.linear(hidden, weight, bias)
