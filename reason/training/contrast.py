"""Teach a classifier what is wrong by what might have stood there instead.

At every place of a right solution the writer had other tokens in mind. One of them is drawn, and the classifier reads
both: the right token in its row and the other one as a side branch, which sees what comes before its place and which
nothing sees. So every token of a solution is a lesson, where a solution with one slip in it would be one in all, and
the wrong ones are those that this writer writes.

Shapes: B solutions of at most T tokens with their prompts, S of them the solution's own; V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from reason.training.classifier import Classifier
from reason.training.examples import IGNORE
from reason.training.loop import Batch

ANY_DIGIT = 0.25  # how often a digit's rival is drawn from all digits, not as the writer would
EASY = 0.05  # what a place counts where the writer does not waver


@dataclass(frozen=True)
class Places:
    """Where the solutions' tokens stand: `at` their index in the row `[B, S]`, `real` False where a row has fewer."""

    at: torch.Tensor
    real: torch.Tensor

    @classmethod
    def of(cls, next_ids: torch.Tensor) -> Places:
        """The places of the tokens that `next_ids` `[B, T]` asks for."""
        taught = next_ids != IGNORE
        count = taught.sum(1)
        steps = torch.arange(int(count.max()), device=next_ids.device)
        first = taught.int().argmax(1) + 1
        real = steps < count[:, None]
        return cls(torch.where(real, first[:, None] + steps, first[:, None]), real)


def rivals(logits: torch.Tensor, tokens: torch.Tensor, digits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Another token for each of `tokens` `[B, S]`, drawn from what the writer thought of, `[B, S, V]`; and how likely
    the writer was to go wrong there, `[B, S]`. `digits` `[V]` says which tokens are digits."""
    here = tokens[..., None]
    p = logits.float().softmax(-1)
    hard = 1 - p.gather(-1, here)[..., 0]
    other = p.scatter(-1, here, 0.0)
    any_digit = digits.float().expand_as(other).scatter(-1, here, 0.0)
    share = ANY_DIGIT * digits[tokens][..., None].float()
    mix = (1 - share) * _normal(other) + share * _normal(any_digit) + 1e-9
    drawn = torch.multinomial(mix.scatter(-1, here, 0.0).flatten(0, 1), 1)
    return drawn.view(tokens.shape), hard


def with_branches(ids: torch.Tensor, places: Places, branches: torch.Tensor) -> dict[str, torch.Tensor]:
    """The trunk's arguments for rows `ids` `[B, T]` followed by one branch for every place: `[B, T + S]`."""
    (rows, length), width = ids.shape, places.at.shape[1]
    index = torch.arange(length, device=ids.device)
    sees = torch.zeros(rows, length + width, length + width, dtype=torch.bool, device=ids.device)
    sees[:, :length, :length] = index <= index[:, None]
    sees[:, length:, :length] = index < places.at[..., None]
    sees[:, length:, length:] = torch.eye(width, dtype=torch.bool, device=ids.device)
    return {
        "input_ids": torch.cat([ids, branches], 1),
        "position_ids": torch.cat([index.expand(rows, -1), places.at], 1),
        "attention_mask": sees[:, None],
    }


@dataclass(frozen=True)
class Contrast:
    """The loss: how badly right tokens are told from their rivals, as often as the writer would write either, and how
    badly the next token is foretold.

    writer   whose slips are to be found
    digits   as in `rivals`
    """

    writer: Any
    digits: torch.Tensor

    def __call__(self, model: Classifier, batch: Batch) -> torch.Tensor:
        ids, next_ids = batch["ids"], batch["next_ids"]
        places = Places.of(next_ids)
        tokens = ids.gather(1, places.at)
        with torch.no_grad():
            logits = self.writer(input_ids=ids, use_cache=False).logits
        before = (places.at - 1)[..., None].expand(-1, -1, logits.shape[-1])
        drawn, hard = rivals(logits.gather(1, before), tokens, self.digits.to(ids.device))
        hidden = model(**with_branches(ids, places, drawn))
        own, side = hidden.split([ids.shape[1], drawn.shape[1]], 1)
        foretold = cross_entropy(model.language(own).flatten(0, 1).float(), next_ids.flatten(), ignore_index=IGNORE)
        forced = places.real & batch["forced"].gather(1, places.at)
        right, wrong = model.right(own).gather(1, places.at), model.right(side)
        told = _loss(right, 1.0) * (1 - hard + EASY) * places.real + _loss(wrong, 0.0) * (hard + EASY) * forced
        return foretold + told.sum() / ((hard + EASY) * forced).sum().clamp(min=1.0)


def digit_ids(tokenizer: Any, vocab_size: int) -> torch.Tensor:
    """`[V]`, which tokens are one digit, with or without a blank before it."""
    digits = torch.zeros(vocab_size, dtype=torch.bool)
    digits[[i for i in range(len(tokenizer)) if tokenizer.decode([i]).strip().isdigit()]] = True
    return digits


def _normal(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)


def _loss(odds: torch.Tensor, label: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(odds, torch.full_like(odds, label), reduction="none")
