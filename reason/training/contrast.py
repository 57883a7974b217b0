"""Teach a classifier what is wrong by what might have stood there instead.

At every place of a right solution a writer had other tokens in mind. One of them is drawn, and the classifier reads
both: the right token in its row and the other one as a side branch, which sees what comes before its place and which
nothing sees. So every token of a solution is a lesson, where a solution with one slip in it would be one in all, and
the wrong tokens are those that these writers write. Where a step begins many tokens would be right, but not to conclude
too early.

Shapes: B solutions of at most T tokens with their prompts, S of them the solution's own; V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from reason.training.classifier import Classifier
from reason.training.examples import IGNORE, NONE
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


class Rivals(NamedTuple):
    """Another token for every place, `[B, S]` like the rest.

    tokens   what stands there instead
    right    how likely the writer was to write what is right
    wrong    and something like the rival
    """

    tokens: torch.Tensor
    right: torch.Tensor
    wrong: torch.Tensor


def draw_rivals(logits: torch.Tensor, tokens: torch.Tensor, known: torch.Tensor, digits: torch.Tensor) -> Rivals:
    """Rivals of `tokens` `[B, S]`: those that are `known` (a token, where it is not `ANY` or `NONE`), the others drawn
    from what the writer thought of, `[B, S, V]`. `digits` `[V]` says which tokens are digits."""
    here = tokens[..., None]
    p = logits.float().softmax(-1)
    right = p.gather(-1, here)[..., 0]
    share = ANY_DIGIT * digits[tokens][..., None].float()
    mix = (1 - share) * _others(p, here) + share * _others(digits.float().expand_as(p), here) + 1e-9
    drawn = torch.multinomial(mix.scatter(-1, here, 0.0).flatten(0, 1), 1).view(tokens.shape)
    named = known >= 0
    wrong = torch.where(named, p.gather(-1, known.clamp(min=0)[..., None])[..., 0], 1 - right)
    return Rivals(torch.where(named, known, drawn), right, wrong)


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
    """The loss: how badly right tokens are told from their rivals, as often as a writer would write either, and how
    badly the next token is foretold.

    writers  whose slips are to be found; the rows are dealt out to them
    digits   as in `draw_rivals`
    """

    writers: Sequence[Any]
    digits: torch.Tensor

    def __call__(self, model: Classifier, batch: Batch) -> torch.Tensor:
        ids, next_ids = batch["ids"], batch["next_ids"]
        places = Places.of(next_ids)
        known = batch["rivals"].gather(1, places.at)
        rivals = draw_rivals(self._thoughts(ids, places), ids.gather(1, places.at), known, self.digits.to(ids.device))
        hidden = model(**with_branches(ids, places, rivals.tokens))
        own, side = hidden.split([ids.shape[1], known.shape[1]], 1)
        foretold = cross_entropy(model.language(own).flatten(0, 1).float(), next_ids.flatten(), ignore_index=IGNORE)
        odds, against = model.right(own).gather(1, places.at), model.right(side)
        sure = places.real & (known != NONE)
        often = (rivals.wrong + EASY) * sure
        told = _loss(odds, 1.0) * (rivals.right + EASY) * places.real + _loss(against, 0.0) * often
        return foretold + told.sum() / often.sum().clamp(min=1.0)

    @torch.no_grad()
    def _thoughts(self, ids: torch.Tensor, places: Places) -> torch.Tensor:
        """The writers' logits `[B, S, V]` at the places."""
        parts = zip(self.writers, ids.tensor_split(len(self.writers)), strict=True)
        whole = torch.cat([writer(input_ids=part, use_cache=False).logits for writer, part in parts if len(part)])
        return whole.gather(1, (places.at - 1)[..., None].expand(-1, -1, whole.shape[-1]))


def digit_ids(tokenizer: Any, vocab_size: int) -> torch.Tensor:
    """`[V]`, which tokens are one digit, with or without a blank before it."""
    digits = torch.zeros(vocab_size, dtype=torch.bool)
    digits[[i for i in range(len(tokenizer)) if tokenizer.decode([i]).strip().isdigit()]] = True
    return digits


def _others(weights: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Weights that sum to 1, without that of `here`."""
    rest = weights.scatter(-1, here, 0.0)
    return rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)


def _loss(odds: torch.Tensor, label: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(odds, torch.full_like(odds, label), reduction="none")
