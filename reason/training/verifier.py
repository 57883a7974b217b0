"""Teach a token classifier to notice what a language model would not have written.

The verifier is the language model with a few layers more and a head of two classes. The layers that were there stay
as they are: what they expect next is in their last hidden state, so the new ones only have to compare a token with what
was expected before it, and to remember the worst so far. What they are taught is the language model's own word for it,
min over the solution's tokens so far of p(token) / max p, at every token: a signal as dense as that of language
modelling. A classifier taught right and wrong at the ends of steps alone hardly got better than chance (`LOG.md`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

from reason.training.examples import IGNORE
from reason.training.loop import Batch


def verifier_of(teacher: LlamaForCausalLM, extra_layers: int) -> LlamaForTokenClassification:
    """A classifier with the teacher's embeddings and layers, frozen, and `extra_layers` fresh ones on top."""
    config = LlamaConfig(**teacher.config.to_dict())
    config.num_hidden_layers += extra_layers
    config.num_labels = 2
    config.tie_word_embeddings = False
    model = LlamaForTokenClassification(config)
    missing, unexpected = model.model.load_state_dict(teacher.model.state_dict(), strict=False)
    fresh = f"layers.{teacher.config.num_hidden_layers}"
    assert not unexpected
    assert all(name.startswith("layers.") and name >= fresh for name in missing), missing
    model.model.embed_tokens.requires_grad_(False)
    for layer in model.model.layers[: teacher.config.num_hidden_layers]:
        layer.requires_grad_(False)
    return model


def running_worth(log_ratios_BL: Tensor, solution_BL: Tensor) -> Tensor:
    """exp of the smallest log ratio of the solution's tokens up to each place; 1 before the solution.

    >>> ratios, solution = torch.tensor([[0.1, 1.0, 0.5, 0.8]]), torch.tensor([[False, True, True, True]])
    >>> running_worth(ratios.log(), solution).tolist()
    [[1.0, 1.0, 0.5, 0.5]]
    """
    counted = torch.where(solution_BL, log_ratios_BL, torch.zeros_like(log_ratios_BL))
    return counted.cummin(dim=1).values.exp()


class VerifierLoss:
    """Cross entropy of the classifier's belief and the teacher's word, at every token of the solution.

    slips    share of a solution's digits that are replaced by another, so that there is something to notice. Half of
             the solutions stay as they are
    """

    def __init__(self, teacher: LlamaForCausalLM, digits: Tensor, *, slips: float = 0.05, seed: int = 0) -> None:
        self._teacher = teacher.eval().requires_grad_(False)
        self._known = teacher.config.num_hidden_layers
        self._digits, self._slips = digits, slips
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        ids_BL = batch["ids"]
        solution_BL = torch.zeros_like(ids_BL, dtype=torch.bool)
        solution_BL[:, 1:] = batch["next_ids"][:, :-1] != IGNORE  # `next_ids` name what follows
        ids_BL = self.slipped(ids_BL, solution_BL)
        out = model(input_ids=ids_BL, output_hidden_states=True, use_cache=False)
        worth_BL = self._worth(ids_BL, solution_BL, out.hidden_states[self._known])
        belief_BL = out.logits[..., 1] - out.logits[..., 0]
        return binary_cross_entropy_with_logits(belief_BL[solution_BL].float(), worth_BL[solution_BL])

    def slipped(self, ids_BL: Tensor, solution_BL: Tensor) -> Tensor:
        """Some digits of the solutions replaced by others."""
        draw_BL = torch.rand(ids_BL.shape, generator=self._generator).to(ids_BL.device)
        spoiled_B1 = torch.rand((len(ids_BL), 1), generator=self._generator).to(ids_BL.device) < 0.5
        digit_BL = torch.isin(ids_BL, self._digits.to(ids_BL.device))
        others = self._digits[torch.randint(len(self._digits), ids_BL.shape, generator=self._generator)]
        slips_BL = solution_BL & digit_BL & spoiled_B1 & (draw_BL < self._slips)
        return torch.where(slips_BL, others.to(ids_BL.device), ids_BL)

    @torch.no_grad()
    def _worth(self, ids_BL: Tensor, solution_BL: Tensor, hidden_BLh: Tensor) -> Tensor:
        """The teacher's word, from the hidden states it shares with the classifier."""
        logits_BLV = self._teacher.lm_head(self._teacher.model.norm(hidden_BLh)).float()
        best_BL = logits_BLV[:, :-1].amax(-1)
        chosen_BL = logits_BLV[:, :-1].gather(-1, ids_BL[:, 1:, None])[..., 0]
        ratios_BL = torch.zeros(ids_BL.shape, device=ids_BL.device)
        ratios_BL[:, 1:] = chosen_BL - best_BL
        return running_worth(ratios_BL, solution_BL)
