"""A token classifier grown from a language model: its layers, a few more, and two classes at every token.

The language model's own head is kept beside while training, so that what it knows is not lost; it is not saved.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

SHRUNK = 50.0  # the top of a language model's residual stream is about so many times what a fresh layer writes
WRITING = ("embed_tokens", "o_proj", "down_proj")  # what writes to it
TRAINED_RATE = 0.3  # of the full rate, for what was trained before


class Classifier(nn.Module):
    """Two heads on one trunk.

    classifier   what is saved: trunk and `score`, two classes
    language     `[D, V]`, logits of the next token
    trained      so many of the trunk's layers came from the language model
    """

    def __init__(self, classifier: LlamaForTokenClassification, language: nn.Linear, trained: int) -> None:
        super().__init__()
        self.classifier, self.language, self.trained = classifier, language, trained

    @property
    def config(self) -> LlamaConfig:
        """The classifier's."""
        return self.classifier.config

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Hidden states `[B, T, D]`; arguments are those of transformers' `LlamaModel`."""
        hidden: torch.Tensor = self.classifier.model(**inputs, use_cache=False).last_hidden_state
        return hidden

    def rate_of(self, name: str) -> float:
        """A parameter's share of the full rate: less for what was trained before, in proportion if it was shrunk."""
        _, inside, rest = name.partition(".layers.")
        if ".score." in name or (inside and int(rest.partition(".")[0]) >= self.trained):
            return 1.0
        return TRAINED_RATE / SHRUNK if any(part in name for part in WRITING) else TRAINED_RATE

    def right(self, hidden: torch.Tensor) -> torch.Tensor:
        """The log-odds `[...]` that a token is right, of hidden states `[..., D]`."""
        odds: torch.Tensor = self.classifier.score(hidden).float().diff(dim=-1)[..., 0]
        return odds


def deepen(model: LlamaForCausalLM, layers: int) -> Classifier:
    """`model` with `layers` more, which pass on what they are given until they are trained: its logits are unchanged.

    Everything that writes to the residual stream is divided by `SHRUNK`, which no layer notices since all of them
    normalise what they read.
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
    return Classifier(classifier, language, old.num_hidden_layers)
