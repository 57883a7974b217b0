"""Adds up what servers need of memory, from config.json alone: weights, KV of a token, and how many tokens are left."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_GB = 1e9
DEFAULT_SHARE = 0.88
"""Share of a GPU for weights and KV where --mem-fraction-static says nothing, about; SGLang chooses it by the GPU."""


@dataclass(frozen=True)
class ModelSize:
    """Bytes of a model, as it runs.

    weights   of all weights
    kv        of the KV of one token
    kv_heads  heads that have KV of their own: more ranks than these repeat them
    window    longest sequence; None if its config does not say
    """

    weights: int
    kv: int
    kv_heads: int
    window: int | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, object], item_bytes: int | None = None) -> ModelSize | None:
        """Returns the size of a decoder with the fields of Llama and Qwen; None where its config has not all of them.

        Experts count all. `item_bytes` is that of a number; None is that of the config, which says bfloat16 by default.

        >>> config = {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8}
        >>> config |= {"head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936, "torch_dtype": "bfloat16"}
        >>> size = ModelSize.from_config(config)  # of Qwen3-32B
        >>> round(size.weights / 2e9, 1), size.kv
        (32.8, 262144)
        """
        nested = config.get("text_config")
        fields = {**config, **nested} if isinstance(nested, dict) else dict(config)
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        counts = [fields.get(name) for name in names]
        if not all(isinstance(count, int) and count > 0 for count in counts) or "kv_lora_rank" in fields:
            return None
        hidden, layers, heads, vocabulary = (_read_int(fields, name, 0) for name in names)
        kv_heads = _read_int(fields, "num_key_value_heads", heads)
        head_size = _read_int(fields, "head_dim", hidden // heads)
        inner = _read_int(fields, "intermediate_size", 4 * hidden)
        experts = _read_int(fields, "num_experts", _read_int(fields, "num_local_experts", 0))
        feed_forward = 3 * hidden * inner
        if experts:
            feed_forward = experts * 3 * hidden * _read_int(fields, "moe_intermediate_size", inner) + hidden * experts
        attention = hidden * head_size * (2 * heads + 2 * kv_heads)
        embeddings = vocabulary * hidden * (1 if fields.get("tie_word_embeddings") else 2)
        if item_bytes is None:
            dtype = str(fields.get("torch_dtype") or fields.get("dtype") or "bfloat16")
            item_bytes = _ITEM_BYTES.get(dtype.removeprefix("torch."), 2)
        weights = embeddings + layers * (attention + feed_forward + 2 * hidden)
        window = fields.get("max_position_embeddings")
        return cls(
            weights=weights * item_bytes,
            kv=2 * layers * kv_heads * head_size * item_bytes,
            kv_heads=kv_heads,
            window=window if isinstance(window, int) else None,
        )

    def with_draft(self, draft: ModelSize) -> ModelSize:
        """Returns the size of this model beside a draft model, which has KV of each token, too."""
        return replace(
            self,
            weights=self.weights + draft.weights,
            kv=self.kv + draft.kv,
            kv_heads=min(self.kv_heads, draft.kv_heads),
        )


@dataclass(frozen=True)
class MemoryPlan:
    """What one server does with the memory that it may use.

    size       of its model
    ranks      devices that the model is divided among
    available  bytes of each device for weights and KV
    tokens     size of the KV pool that was asked for; None is all that is left
    device     "GPU" or "machine", for messages
    """

    size: ModelSize
    ranks: int
    available: int
    tokens: int | None
    device: str = "GPU"

    @property
    def weights_per_rank(self) -> int:
        return -(-self.size.weights // self.ranks)

    @property
    def kv_per_rank(self) -> int:
        """Bytes of one token on each device; ranks beyond the KV heads hold copies."""
        return -(-self.size.kv // min(self.ranks, self.size.kv_heads))

    @property
    def left(self) -> int:
        """Bytes of each device for KV; below 0 where the weights do not fit."""
        return self.available - self.weights_per_rank

    @property
    def pool(self) -> int:
        """Tokens of the KV pool."""
        most = max(0, self.left) // self.kv_per_rank
        return most if self.tokens is None else min(most, self.tokens)

    def require_fit(self, name: str) -> None:
        """Raises ValueError with the numbers where the model, or the pool that was asked for, does not fit."""
        per = f"{_to_gb(self.weights_per_rank)} of weights on each {self.device}"
        if self.left <= 0:
            fewest = next((n for n in (1, 2, 4, 8, 16, 32) if self.size.weights / n < self.available), None)
            hint = f"; {name}.tp={fewest} would leave room" if fewest and self.device == "GPU" else ""
            raise ValueError(f"{per} do not fit into {_to_gb(self.available)}{hint}")
        num_tokens = self.tokens or 1
        if num_tokens > self.left // self.kv_per_rank:
            need = num_tokens * self.kv_per_rank
            raise ValueError(
                f"{num_tokens:,} tokens of {_to_kb(self.kv_per_rank)} are {_to_gb(need)} of KV, and {per} leave "
                f"{_to_gb(self.left)} of {_to_gb(self.available)}: {self.left // self.kv_per_rank:,} tokens fit"
            )

    def describe(self) -> str:
        """Returns the sum in one line."""
        each = f" ({_to_gb(self.weights_per_rank)} on each of {self.ranks} GPUs)" if self.ranks > 1 else ""
        kv = f" ({_to_kb(self.kv_per_rank)} on each)" if self.ranks > 1 else ""
        window = self.size.window
        requests = f", {self.pool / window:.1f} times the window of {window:,}" if window else ""
        return (
            f"weights {_to_gb(self.size.weights)}{each}, KV {_to_kb(self.size.kv)} per token{kv}; of "
            f"{_to_gb(self.available)} per {self.device} {_to_gb(self.left)} are left: a pool of {self.pool:,} tokens"
            f"{requests}"
        )


def read_gpu_bytes() -> dict[int, int] | None:
    """Returns the memory of each GPU by its number; None where there is no driver to ask."""
    query = ["nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(",") for line in listed.splitlines() if line.count(",") == 1]
    return {int(number): int(mib) * 2**20 for number, mib in rows if mib.strip().isdecimal()}


def read_machine_bytes() -> int | None:
    """Returns the memory of this machine that is free or can be freed; None where the system does not say."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _read_int(fields: Mapping[str, object], name: str, default: int) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and value > 0 else default


def _to_gb(size: float) -> str:
    return f"{size / _GB:.2f} GB" if abs(size) < 10 * _GB else f"{size / _GB:.1f} GB"


def _to_kb(size: int) -> str:
    return f"{size / 1000:.1f} kB"
