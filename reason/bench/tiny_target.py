"""A random model with so few tokens that its distribution over the first ones of a text is exactly known.

It follows from all prefixes there are. It is computed with transformers, model and sampling filters alike: the engine
and its sampler have no part in it.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
import transformers

from decoding.core import SamplingParams
from decoding.model.transformers_checkpoint import HFBackend

Floats = npt.NDArray[np.float64]

VOCABULARY_SIZE = 16
NUM_POSITIONS = 4
PROMPT = (3, 1, 4, 1, 5)
DRAFT_NOISE = 0.03  # of the weights of the draft model: it agrees with the target about as often as a good one


class TinyTarget:
    """The model of a seed, the engine's backend over it, and that of a draft model which resembles it."""

    def __init__(self, seed: int) -> None:
        self.model, draft = make_model(seed), make_model(seed)
        with torch.no_grad():
            for parameter in draft.parameters():
                parameter.add_(DRAFT_NOISE * torch.randn_like(parameter))
        self.backend = HFBackend(self.model, device="cpu", dtype="float64")
        self.draft_backend = HFBackend(draft, device="cpu", dtype="float64")

    def position_distributions(self, params: SamplingParams) -> list[Floats]:
        """Returns the distribution `[V]` of the token at each position after `PROMPT`."""
        filters, joint, distributions = make_filters(params), np.ones(1), []
        for logits in self._prefix_logits:
            no_ids = torch.empty(len(logits), 0, dtype=torch.long)  # these filters read none
            probabilities = torch.softmax(filters(no_ids, logits.clone()), dim=-1).numpy()
            joint = joint[:, None] * probabilities
            distributions.append(joint.sum(axis=0))
            joint = joint.ravel()
        return distributions

    @cached_property
    def _prefix_logits(self) -> list[torch.Tensor]:
        """By n, the logits `[V ** n, V]` after each text of n tokens, in lexicographic order."""
        logits = []
        for length in range(NUM_POSITIONS):
            ids = [(*PROMPT, *text) for text in product(range(VOCABULARY_SIZE), repeat=length)]
            with torch.inference_mode():
                logits.append(self.model(torch.tensor(ids)).logits[:, -1])
        return logits


def make_model(seed: int) -> transformers.LlamaForCausalLM:
    """Returns a random model in float64 whose next token depends on all tokens before it."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.ndim == 1 else 0.0, std=0.3)
    return model


def make_filters(params: SamplingParams) -> transformers.LogitsProcessorList:
    """Returns the filters of transformers for settings with a temperature above 0."""
    filters = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        filters.append(transformers.TopKLogitsWarper(params.top_k))
    filters.append(transformers.TopPLogitsWarper(params.top_p))
    filters.append(transformers.MinPLogitsWarper(params.min_p))
    return filters
