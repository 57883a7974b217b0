"""A config.json tells whether the engine runs a model, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

import reason
from decoding.model.families import explain_unsupported_config
from reason.config.errors import ConfigError

QWEN3 = {"model_type": "qwen3", "use_sliding_window": False, "sliding_window": None, "rope_scaling": None}


@pytest.mark.parametrize("config", [Qwen2Config(), Qwen3Config(), LlamaConfig()], ids=lambda config: config.model_type)
def test_defaults_of_each_family_run(config: Qwen2Config | Qwen3Config | LlamaConfig) -> None:
    assert explain_unsupported_config(config.to_dict()) is None
    # as hub files of older versions of transformers are
    assert explain_unsupported_config(QWEN3 | {"model_type": config.model_type}) is None


@pytest.mark.parametrize(
    ("changes", "reason_given"),
    [
        ({"model_type": "qwen3_moe"}, "its model_type is qwen3_moe, not one of qwen2, qwen3, llama"),
        ({"model_type": None}, "its model_type is None"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, r"its weights are quantised \(awq\)"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type dynamic"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "type longrope"),
    ],
)
def test_unsupported_models_are_refused_before_they_are_loaded(
    changes: Mapping[str, object], reason_given: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | {"max_position_embeddings": 4096} | dict(changes)))
    # there are no weights in the folder
    with pytest.raises(ConfigError, match=rf"^engine=local cannot run .*: .*{reason_given}.*engine=sglang$"):
        reason.load(f"model.path={tmp_path}", "scorer=none", "search=self_consistency")
