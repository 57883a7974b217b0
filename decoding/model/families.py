"""Says from a model's config.json whether this engine runs it. Imports no torch: nothing need be loaded to know."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES = ("qwen2", "qwen3", "llama")
"""Values of `model_type`."""
SILU = ("silu", "swish")
"""Names that configurations have for the activation of the compiled decoder and of `layer_operators`."""
LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
"""Rotary embeddings that change with the length of the input."""


def explain_unsupported_config(config: Mapping[str, object]) -> str | None:
    """Returns why a model with this config.json cannot run, as the end of a sentence; None if it can.

    >>> explain_unsupported_config({"model_type": "qwen3_moe"})
    'its model_type is qwen3_moe, not one of qwen2, qwen3, llama'
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"its model_type is {family}, not one of {', '.join(FAMILIES)}"
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        return f"its weights are quantised ({quantization.get('quant_method', 'by an unknown method')})"
    layer_types = config.get("layer_types")
    kinds = layer_types if isinstance(layer_types, list) else []
    if config.get("use_sliding_window") is True or any(kind != "full_attention" for kind in kinds):
        return "its attention has a sliding window"
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, Mapping) and (kind := rope.get("rope_type", rope.get("type"))) in LENGTH_DEPENDENT_ROPES:
            return f"its rotary embeddings are of type {kind}, which change with the input's length"
    return None
