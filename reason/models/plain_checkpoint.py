"""Reads checkpoints of the families that the engine runs without the model classes of transformers.

Importing those classes takes more than a second of every start, and the engine uses nothing of them but the names of
their weights. A checkpoint is plain if its folder has safetensors and a config.json without anything special. Every
other one is loaded by transformers: nothing is assumed about what is not understood here. Imports torch: import this
module inside functions only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from decoding.model.decoder_weights import copy_unless_fused
from decoding.model.device_choice import Device, DType, pick_device, pick_dtype
from decoding.model.families import FAMILIES
from decoding.model.transformers_checkpoint import HFBackend
from reason.models.loading import hidden_progress_bars

Config = SimpleNamespace
"""The fields of a config.json under their own names."""

NEEDED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("rms_norm_eps", "vocab_size", "max_position_embeddings"),
)
"""Fields without which a config.json is left to transformers, whose defaults are not repeated here."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def open_language_model(source: str, *, device: Device, dtype: DType, **options: Any) -> HFBackend:
    """Returns the language model at `source`, a folder or a hub id; `options` are others of `HFBackend`.

    Raises: as `HFBackend` and transformers do.
    """
    pick_dtype(dtype, pick_device(device))  # a wrong setting is refused before anything is read
    model = load_plain_model(source, PlainLanguageModel)
    if model is None:
        with hidden_progress_bars():
            return HFBackend.from_pretrained(source, device=device, dtype=dtype, **options)
    return HFBackend(model, device=device, dtype=dtype, frees_model=True, **options)


def load_plain_model(source: str, build: Callable[[Config], nn.Module]) -> Any:
    """Returns the model that `build` makes of the config, with the weights of the folder `source`, on the CPU.

    Weights have the dtype of their file: the decoder that takes them converts them, one at a time.
    None where the checkpoint is not plain, or where its weights are not those of the model: transformers has the word.
    """
    config, files = read_plain_config(Path(source)), _list_weight_files(Path(source))
    if config is None or not files:
        return None
    with torch.device("meta"):
        model: Any = build(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    weights: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names = expected.keys() & set(opened.keys())
            if any(tuple(opened.get_slice(name).get_shape()) != expected[name] for name in names):
                return None
            weights |= {name: copy_unless_fused(name, opened.get_tensor(name)) for name in names}
    tied = {HEAD: weights.get(EMBEDDING)} if getattr(config, "tie_word_embeddings", False) and HEAD in expected else {}
    # a file with a head that its config ties to the embedding says two things
    if tied.keys() & weights.keys() or weights.keys() | tied.keys() != expected.keys():
        return None
    model.load_state_dict(weights | tied, assign=True)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight  # one tensor, also on another device
    return model.eval().requires_grad_(False)


def read_plain_config(folder: Path) -> Config | None:
    """Returns the fields of the config.json in a folder; None if there is anything in it that this module leaves to
    transformers: another family or activation, scaled or partial rotary embeddings, windows, quantised weights."""
    file = folder / "config.json"
    if not file.is_file() or (folder / "adapter_config.json").exists():
        return None
    fields = json.loads(file.read_text(encoding="utf-8"))
    if any(fields.get(name) is None for name in NEEDED) or fields.get("model_type") not in FAMILIES:
        return None
    rope = fields.get("rope_parameters") or {"rope_theta": fields.get("rope_theta"), "rope_type": "default"}
    special = (
        fields.get("quantization_config"),
        fields.get("rope_scaling"),
        fields.get("use_sliding_window"),
        fields.get("hidden_act", "silu") != "silu",
        any(kind != "full_attention" for kind in fields.get("layer_types") or ()),
        rope.keys() != {"rope_theta", "rope_type"} or rope["rope_type"] != "default" or rope["rope_theta"] is None,
        # the family's default is not the quotient below
        fields["model_type"] == "qwen3" and fields.get("head_dim") is None,
    )
    if any(special):
        return None
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    labels = len(fields["id2label"]) if fields.get("id2label") else 2
    return Config(**fields | {"head_dim": head_dim, "rope_theta": float(rope["rope_theta"]), "num_labels": labels})


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Leaves the weights to the checkpoint. Random numbers on no device import torch's compiler."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """As `_Linear`."""


class _RMSNorm(nn.RMSNorm):
    def reset_parameters(self) -> None:
        """As `_Linear`."""


class PlainDecoder(nn.Module):
    """The weights of a decoder under the names of transformers, as `FusedDecoder` reads them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_PlainLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = _PlainRotary(config)


class PlainLanguageModel(nn.Module):
    """A decoder and the layer that makes logits of its hidden states."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = PlainDecoder(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)


class PlainClassifier(nn.Module):
    """A decoder and a layer with one output per label: `...ForTokenClassification`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = PlainDecoder(config)
        self.score = _Linear(config.hidden_size, config.num_labels)


class _PlainLayer(nn.Module):
    """The weights of one decoder layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = _PlainAttention(config)
        self.mlp = _PlainMLP(config)
        self.input_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)


class _PlainAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
        # Qwen2 has biases whatever its config says, and none after the attention
        is_qwen2 = config.model_type == "qwen2"
        bias = is_qwen2 or bool(getattr(config, "attention_bias", False))
        self.scaling = size**-0.5
        self.q_proj = _Linear(hidden, queries, bias=bias)
        self.k_proj = _Linear(hidden, keys, bias=bias)
        self.v_proj = _Linear(hidden, keys, bias=bias)
        self.o_proj = _Linear(queries, hidden, bias=bias and not is_qwen2)
        if config.model_type == "qwen3":
            self.q_norm, self.k_norm = (_RMSNorm(size, config.rms_norm_eps) for _ in range(2))


class _PlainMLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        bias = config.model_type == "llama" and bool(getattr(config, "mlp_bias", False))
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act_fn = nn.SiLU()


class _PlainRotary(nn.Module):
    """Rotary embeddings without scaling. The frequencies are no buffer: a cast of the model must not round them."""

    rope_type = "default"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._base, self._size = config.rope_theta, config.head_dim

    def forward(self, x: Tensor, positions_NT: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cos and sin `[N, T, head_dim]` in the dtype of `x`, computed in float32."""
        exponents = torch.arange(0, self._size, 2, device=positions_NT.device).float() / self._size
        angles = positions_NT[..., None].float() * (1.0 / self._base**exponents)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _list_weight_files(folder: Path) -> list[Path]:
    """Returns the files of safetensors of a checkpoint; none for another format, or where one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    files = [folder / name for name in names]
    return files if all(file.is_file() for file in files) else []
