"""Runs a transformers checkpoint as a Backend: packed tokens in, hidden states and the head's output out.

The forward pass is that of `fused_decoder`, over the weights of the checkpoint; equality with transformers is tested.
Measured at the bundled size, CPU, one thread of a busy machine, calls paired back to back, median of 200: the modules
of transformers take 1.7-1.8 times as long for 1 token, 1.5-1.7 for 4 and 16, 1.5 for 64 (quartiles within 0.2, once
0.5). The engine benchmark measures it again as `modules_vs_fused`. The gain shrinks as the matrix products grow; large
models do not have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.model.attention import DeviceBlock
from decoding.model.backend import TokenBatch
from decoding.model.fused_decoder import FusedDecoder
from decoding.threads import with_helper_threads

Head = Callable[[Tensor], Tensor]
Device = Literal["auto", "cpu", "cuda"] | str
DType = Literal["auto", "float32", "float64", "bfloat16"] | str


def pick_device(device: Device) -> torch.device:
    """Returns the device; `auto` is CUDA where there is one. Raises ValueError for a device this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    picked = torch.device(device)
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is set, but torch sees no CUDA device")
    return picked


def pick_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """Returns the dtype; `auto` is bfloat16 on CUDA and float32 on CPU, where bfloat16 is slow."""
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
        target = pick_device(device)
        model = model.to(target, pick_dtype(dtype, target)).eval().requires_grad_(False)
        self.decoder = FusedDecoder(getattr(model, "model", model))
        linear = getattr(model, "lm_head", None) or getattr(model, "score", None)
        # without a head of its own the model is a bare decoder
        self._head = head or _make_head(linear)
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.dtype, self.device = self.decoder.dtype, self.decoder.device
        on_cpu = self.device.type == "cpu"
        # only CPU rounds choose their number of threads
        self._num_weights = self.decoder.num_weights if on_cpu else 0
        self._num_head_weights = linear.weight.numel() if on_cpu and linear is not None and head is None else 0
        d = self.decoder
        # 2: a key and a value
        self.kv_bytes_per_token = 2 * d.num_layers * d.num_kv_heads * d.head_size * self.dtype.itemsize

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        kind: Literal["lm", "classifier", "hidden"] = "lm",
        head: Head | None = None,
        device: Device = "auto",
        dtype: DType = "auto",
    ) -> HFBackend:
        """Loads a folder or a hub id; `classifier` has a token-classification head, `hidden` is the bare decoder."""
        import transformers

        auto = {
            "lm": transformers.AutoModelForCausalLM,
            "classifier": transformers.AutoModelForTokenClassification,
            "hidden": transformers.AutoModel,
        }[kind]
        torch_dtype = pick_dtype(dtype, pick_device(device))
        return cls(auto.from_pretrained(path, dtype=torch_dtype), head=head, device=device, dtype=dtype)

    @property
    def attention_seconds(self) -> float:
        """Seconds in attention; 0 on CUDA, where the clock would measure the launches only."""
        return self.decoder.attention_seconds if self.device.type == "cpu" else 0.0

    def new_kv_pool(self, capacity: int) -> Tensor:
        """Returns `[layers, kv_heads, 1 + capacity, 2 * head_dim]`, a token's key and value side by side.

        Heads come before slots, so that gathered slots are already laid out for a product per head.
        """
        d = self.decoder
        shape = (d.num_layers, d.num_kv_heads, capacity + 1, 2 * d.head_size)
        # zeros, not empty: masked keys are multiplied by 0, and 0 * NaN is NaN
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        d = self.decoder
        blocks = [
            DeviceBlock.from_block(
                block,
                num_kv_heads=d.num_kv_heads,
                queries_per_kv=d.num_heads // d.num_kv_heads,
                device=self.device,
                dtype=self.dtype,
            )
            for block in batch.blocks
        ]
        # non_blocking: the copies may run late, and nothing writes to the arrays after packing
        tokens_T, positions_T, slots_T, output_indices_W = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.tokens_T, batch.positions_T, batch.slots_T, batch.logits_indices)
        )
        # the indices ascend, so as many as there are tokens means all of them
        indices = None if len(batch.logits_indices) == len(batch.tokens_T) else output_indices_W
        cos_sin = d.rotary_table(positions_T, int(batch.positions_T.max()))
        with with_helper_threads(self._num_weights, len(tokens_T)):
            return d.forward(tokens_T, cos_sin, slots_T, indices, blocks, pool)

    @torch.inference_mode()
    def apply_head(self, hidden: Tensor) -> Tensor:
        with with_helper_threads(self._num_head_weights, len(hidden)):
            return self._head(hidden)


def _make_head(linear: Any | None) -> Head:
    """Returns a linear layer as a function of hidden states; without a layer the identity."""
    if linear is None:
        return lambda hidden: hidden
    # the tensors alone: the layer's model would keep its unfused matrices in memory
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    return lambda hidden: F.linear(hidden, weight, bias)
