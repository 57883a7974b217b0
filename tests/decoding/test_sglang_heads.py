"""Reward heads inside SGLang keep their own logits' weight: with modules in SGLang's place."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.paths import ROOT

VOCABULARY, HIDDEN = 6, 4


class TiedModel(nn.Module):
    """Loads weights as SGLang's models do: the embedding also to `lm_head.weight`, where both are tied."""

    def __init__(self, config: Any, quant_config: object = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size)})
        self.lm_head = self.model["embed_tokens"]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            tied = ["lm_head.weight"] if name == "model.embed_tokens.weight" and self.config.tie_word_embeddings else []
            for target in (*tied, name):
                getattr(parameters[target], "weight_loader", copy_weight)(parameters[target], weight)


def copy_weight(parameter: torch.Tensor, weight: torch.Tensor) -> None:
    assert parameter.shape == weight.shape, (parameter.shape, weight.shape)
    parameter.data.copy_(weight)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of our models, on models in the place of SGLang's."""
    contents: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.models")},
        "sglang.srt.layers.logits_processor": {"LogitsProcessor": lambda config, skip_all_gather: None},
        "sglang.srt.models.llama": {"LlamaForCausalLM": TiedModel},
        "sglang.srt.models.qwen2": {"Qwen2ForCausalLM": TiedModel},
        "sglang.srt.models.qwen3": {"Qwen3ForCausalLM": TiedModel},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__path__ = []  # a package
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    # not imported under its name, under which it would stay
    spec = spec_from_file_location("heads_on_stand_ins", ROOT / "decoding" / "sglang_plugin" / "models" / "heads.py")
    assert spec is not None
    assert spec.loader is not None
    heads = module_from_spec(spec)
    spec.loader.exec_module(heads)
    return heads


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_embedding_that_is_tied_leaves_the_label_head_alone(heads: Any, is_tied: bool) -> None:
    config = SimpleNamespace(vocab_size=VOCABULARY, hidden_size=HIDDEN, tie_word_embeddings=is_tied)
    model = heads.Qwen3ForTokenClassification(config)
    expected = model.lm_head.weight.clone()
    weights = {"score.weight": torch.ones(2, HIDDEN), "score.bias": torch.zeros(2)}
    model.load_weights([*weights.items(), ("model.embed_tokens.weight", torch.ones(VOCABULARY, HIDDEN))])
    assert torch.equal(model.lm_head.weight, expected)
    assert torch.equal(model.score.weight, weights["score.weight"])
    assert torch.equal(model.model["embed_tokens"].weight, torch.ones(VOCABULARY, HIDDEN))
