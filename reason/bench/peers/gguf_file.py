"""Writes a Llama checkpoint as a GGUF file, the format of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import gguf
    from numpy.typing import NDArray

_OUTSIDE_LAYERS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(source: str, file: Path, *, is_bfloat16: bool = False, with_tokens: bool = False) -> None:
    """Writes the checkpoint in a folder as float32, which holds bfloat16 and float16 exactly.

    is_bfloat16  writes matrices in bfloat16, to which those of another dtype are rounded; vectors stay in float32, as
                 llama.cpp wants norms
    with_tokens  writes its byte-level vocabulary, too, so that a server knows the texts of tokens and which one ends a
                 text; how texts are split into words is not in the file, and is GPT-2's there

    Raises: ValueError for a checkpoint that is no Llama with plain rotary positions.
    """
    config = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default":
        raise ValueError(
            f"{source} cannot be written as GGUF: model_type must be llama with rope_type default, got "
            f"{config['model_type']} with {rope.get('rope_type', 'default')}"
        )
    import gguf
    from safetensors.torch import load_file

    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_size = config.get("head_dim") or config["hidden_size"] // num_heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config["vocab_size"])
    if with_tokens:
        _add_tokens(writer, Path(source), config)
    else:
        writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if is_bfloat16 else gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}
    for part in sorted(Path(source).glob("*.safetensors")):
        for name, tensor in load_file(part).items():
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            renamed = rename_tensor(name)
            values = tensor.float().numpy()
            if (kind := renamed.split(".")[-2]) in heads:
                values = interleave_rotary(values, heads[kind])
            if is_bfloat16 and values.ndim == 2:
                kind_of_matrix = gguf.GGMLQuantizationType.BF16
                writer.add_tensor(renamed, gguf.quantize(values, kind_of_matrix), raw_dtype=kind_of_matrix)
            else:
                writer.add_tensor(renamed, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter, source: Path, config: Mapping[str, int]) -> None:
    """Adds the vocabulary, with names for the rows of the embedding that no token has."""
    import gguf

    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    by_id = {number: token for token, number in tokenizer["model"]["vocab"].items()} | special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id.get(i, f"<unused {i}>") for i in range(config["vocab_size"])])
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
    writer.add_token_types([kinds[0 if i in special else 1 if i in by_id else 2] for i in range(config["vocab_size"])])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    # Without one it is id 11, GPT-2's, here "*", which llama-cpp-python leaves out of streams and log-probabilities.
    writer.add_bos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def rename_tensor(name: str) -> str:
    """Returns the name that llama.cpp has for a tensor of a Llama checkpoint. Raises: ValueError for another tensor.

    >>> rename_tensor("model.layers.3.self_attn.q_proj.bias"), rename_tensor("model.norm.weight")
    ('blk.3.attn_q.bias', 'output_norm.weight')
    """
    module, _, kind = name.rpartition(".")
    if renamed := _OUTSIDE_LAYERS.get(module):
        return f"{renamed}.{kind}"
    _, _, in_layers = module.partition("model.layers.")
    layer, _, in_layer = in_layers.partition(".")
    if in_layer not in _OF_LAYER:
        raise ValueError(f"a Llama of GGUF has no tensor {name}")
    return f"blk.{layer}.{_OF_LAYER[in_layer]}.{kind}"


def interleave_rotary(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Returns the rows of a query or key projection with the two halves of each head interleaved.

    The hub's Llama rotates entry i of a head with entry i + size / 2, llama.cpp entry 2i with entry 2i + 1.

    >>> interleave_rotary(np.arange(8, dtype=np.float32), 2).astype(int).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
