"""Builds a token classifier from a language model: its layers, a few more, and two classes at every token.

During training it keeps the language model's head, so that its knowledge is not lost; that head is not saved.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

SHRUNK = 50.0  # the residual stream at the top of a language model is about so many times the output of a new layer
WRITING = ("embed_tokens", "o_proj", "down_proj")  # modules that write to the residual stream
TRAINED_RATE = 0.3  # share of the full rate for parameters that were trained before


class DeepenedClassifier(nn.Module):
    """A classifier with the language model's head on the same trunk.

    classifier   the part that is saved: trunk and `score`, two classes
    language     `[D, V]`, logits of the next token
    trained      number of the trunk's layers that came from the language model
    """

    def __init__(self, classifier: LlamaForTokenClassification, language: nn.Linear, trained: int) -> None:
        super().__init__()
        self.classifier, self.language, self.trained = classifier, language, trained

    @property
    def config(self) -> LlamaConfig:
        """The classifier's config."""
        return self.classifier.config

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Returns hidden states `[B, T, D]`; arguments are those of transformers' `LlamaModel`."""
        hidden: torch.Tensor = self.classifier.model(**inputs, use_cache=False).last_hidden_state
        return hidden

    def rate_of(self, name: str) -> float:
        """Returns a parameter's share of the full rate: less if trained before, in proportion if it was shrunk."""
        _, inside, rest = name.partition(".layers.")
        if ".score." in name or (inside and int(rest.partition(".")[0]) >= self.trained):
            return 1.0
        return TRAINED_RATE / SHRUNK if any(part in name for part in WRITING) else TRAINED_RATE

    def right_log_odds(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the log-odds `[...]` that a token is right, of hidden states `[..., D]`."""
        odds: torch.Tensor = self.classifier.score(hidden).float().diff(dim=-1)[..., 0]
        return odds


def deepen_model(model: LlamaForCausalLM, layers: int) -> DeepenedClassifier:
    """Adds `layers` layers to `model`, which are identities until they are trained: its logits are unchanged.

    Everything that writes to the residual stream is divided by `SHRUNK`; this changes no layer's output, because all
    layers normalise their input.
    """
    old = model.config
    changed = {
        "num_hidden_layers": old.num_hidden_layers + layers,
        "rms_norm_eps": old.rms_norm_eps / SHRUNK**2,
        "tie_word_embeddings": False,
        "id2label": {0: "wrong", 1: "right"},
        "label2id": {"wrong": 0, "right": 1},
    }
    classifier = LlamaForTokenClassification(LlamaConfig(**old.to_dict() | changed)).to(model.dtype)
    trunk = classifier.model
    trunk.load_state_dict(model.model.state_dict(), strict=False)
    language = nn.Linear(old.hidden_size, old.vocab_size, bias=False)
    with torch.no_grad():
        language.weight.copy_(model.lm_head.weight)
        trunk.embed_tokens.weight /= SHRUNK
        for index, layer in enumerate(trunk.layers):
            for parameter in (*layer.self_attn.o_proj.parameters(), *layer.mlp.down_proj.parameters()):
                parameter *= 1 / SHRUNK if index < old.num_hidden_layers else 0.0
    return DeepenedClassifier(classifier, language, old.num_hidden_layers)
