"""Online Speculative Decoding (Liu et al. 2023, arXiv 2310.07177): the draft model learns from refusals while serving.

Where the target refused all drafted children of a token, its distribution after that token is kept. After so many
refusals the draft model takes one step of gradient descent towards them, and drafts with the new weights.

Text does not change under a lossless rule: only how much of it is drafted does. Of one branch at a time, the same seeds
in the same order give the same weights; with several, weights depend on which branches share a round.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.core import Tokens
from decoding.model.backend import Backend
from decoding.speculation.interfaces import Feedback, LogProbs, TokenIds
from decoding.validation import require_count, require_positive

CONTEXT = 256
"""Tokens before a refusal that a step reads."""
TOP = 10
"""Tokens of the target's distribution that are learned."""


@dataclass(frozen=True)
class _Refusal:
    """The last tokens before a refusal, and the target's most likely tokens there with their log-probabilities."""

    context: Tokens
    ids: TokenIds
    logprobs: LogProbs


class OnlineDistillation:
    """Implements `ModelUpdater` with a causal language model of transformers, which it trains.

    model          in float32, on its device; its weights change
    open_backend   makes the backend that drafts of the model
    every          refusals per step of learning; so many are kept at most, with `CONTEXT` tokens each
    learning_rate  of AdamW

    num_steps   steps of learning so far

    Raises: ValueError naming the setting.
    """

    feedback_k = TOP

    def __init__(self, model: Any, open_backend: Callable[[Any], Backend], *, every: int, learning_rate: float) -> None:
        require_count("learn_every", every, at_least=1)
        require_positive("learning_rate", learning_rate)
        self._model, self._open_backend, self._every = model, open_backend, every
        self._refusals: list[_Refusal] = []
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        self.num_steps = 0

    def update_model(self, feedback: Items[Feedback]) -> Backend | None:
        """See `ModelUpdater`: a new backend after every step of learning."""
        for outcome in feedback:
            if (refusal := find_refusal(outcome)) is not None:
                self._refusals.append(refusal)
        if len(self._refusals) < self._every:
            return None
        step, self._refusals = self._refusals[: self._every], []
        # a round may run in inference mode: weights that learn need gradients
        with torch.inference_mode(False), torch.enable_grad():
            self._optimizer.zero_grad(set_to_none=True)
            self.compute_loss(step).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
        self.num_steps += 1
        return self._open_backend(self._model)

    def compute_loss(self, refusals: Items[_Refusal]) -> Tensor:
        """Returns the mean cross entropy of the model against the target's most likely tokens after each context."""
        device = next(self._model.parameters()).device
        lengths = [len(refusal.context) for refusal in refusals]
        ids_RT = torch.zeros(len(refusals), max(lengths), dtype=torch.long)
        for row, refusal in enumerate(refusals):  # filled up on the right, where a causal model does not look
            ids_RT[row, : lengths[row]] = torch.tensor(refusal.context)
        hidden = self._model.model(input_ids=ids_RT.to(device), use_cache=False).last_hidden_state
        last_RD = hidden[torch.arange(len(refusals), device=device), torch.tensor(lengths, device=device) - 1]
        log_q_RV = self._model.lm_head(last_RD).float().log_softmax(-1)
        ids_RK = torch.from_numpy(np.stack([refusal.ids for refusal in refusals])).to(device)
        p_RK = torch.from_numpy(np.stack([refusal.logprobs for refusal in refusals])).to(device).exp()
        loss: Tensor = -(p_RK * log_q_RV.gather(1, ids_RK)).sum(-1).mean()
        return loss


def find_refusal(outcome: Feedback) -> _Refusal | None:
    """Returns where the target refused all drafted children of the last accepted token; None where it had none."""
    draft, path = outcome.draft, outcome.accepted_nodes
    last = path[-1] if path else -1
    if last not in draft.parents:
        return None
    ids, logprobs = outcome.top_tokens()
    context = (*outcome.branch.tokens[:], *(draft.tokens[node] for node in path))[-CONTEXT:]
    return _Refusal(context, ids[1 + last].copy(), logprobs[1 + last].copy())
