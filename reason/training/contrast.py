"""Trains a classifier of right and wrong tokens by contrast: each token of a solution against a rival in its place.

At every place of a correct solution the writing models give probability to other tokens. One of them is drawn, and the
classifier reads both: the right token in its row, and the rival as a side branch, which attends to the tokens before
its place and to which no token attends. So every token of a solution is an example, where a solution with one injected
error would be a single one, and the wrong tokens are those that these models write. Where a step begins, many tokens
are right, but not a premature conclusion.

Shapes: B solutions of at most T tokens with their prompts, S tokens of the solution; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from reason.training.classifier import DeepenedClassifier
from reason.training.examples import IGNORE, NONE
from reason.training.loop import Batch

ANY_DIGIT = 0.25  # share of digits whose rival is drawn uniformly from all digits, not from the writer's distribution
EASY = 0.05  # weight of a place where the writer is certain


@dataclass(frozen=True)
class SolutionPlaces:
    """Positions of the solutions' tokens: `at` is their index in the row `[B, S]`, `real` False for padding."""

    at: torch.Tensor
    real: torch.Tensor

    @classmethod
    def from_next_ids(cls, next_ids: torch.Tensor) -> SolutionPlaces:
        """Returns the places of the tokens that `next_ids` `[B, T]` has as targets."""
        taught = next_ids != IGNORE
        count = taught.sum(1)
        steps = torch.arange(int(count.max()), device=next_ids.device)
        first = taught.int().argmax(1) + 1
        real = steps < count[:, None]
        return cls(torch.where(real, first[:, None] + steps, first[:, None]), real)


class RivalTokens(NamedTuple):
    """A rival for every place; all fields are `[B, S]`.

    tokens   the rivals
    right    the writer's probability of the right token
    wrong    the writer's probability of the rival if it is known, else of any wrong token
    """

    tokens: torch.Tensor
    right: torch.Tensor
    wrong: torch.Tensor


def draw_rivals(logits: torch.Tensor, tokens: torch.Tensor, known: torch.Tensor, digits: torch.Tensor) -> RivalTokens:
    """Returns rivals of `tokens` `[B, S]`: the `known` ones (not `ANY`, `NONE`), others drawn from the writer's
    logits `[B, S, V]`. `digits` `[V]` marks tokens that are digits."""
    here = tokens[..., None]
    p = logits.float().softmax(-1)
    right = p.gather(-1, here)[..., 0]
    share = ANY_DIGIT * digits[tokens][..., None].float()
    mix = (1 - share) * _without_token(p, here) + share * _without_token(digits.float().expand_as(p), here) + 1e-9
    drawn = torch.multinomial(mix.scatter(-1, here, 0.0).flatten(0, 1), 1).view(tokens.shape)
    named = known >= 0
    wrong = torch.where(named, p.gather(-1, known.clamp(min=0)[..., None])[..., 0], 1 - right)
    return RivalTokens(torch.where(named, known, drawn), right, wrong)


def with_branches(ids: torch.Tensor, places: SolutionPlaces, branches: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the trunk's arguments for rows `ids` `[B, T]` followed by one branch token per place: `[B, T + S]`."""
    (rows, length), width = ids.shape, places.at.shape[1]
    index = torch.arange(length, device=ids.device)
    sees = torch.zeros(rows, length + width, length + width, dtype=torch.bool, device=ids.device)
    sees[:, :length, :length] = index <= index[:, None]
    sees[:, length:, :length] = (
        index < places.at[..., None]
    )  # strictly before: a branch replaces the token at its place
    sees[:, length:, length:] = torch.eye(width, dtype=torch.bool, device=ids.device)
    return {
        "input_ids": torch.cat([ids, branches], 1),
        "position_ids": torch.cat([index.expand(rows, -1), places.at], 1),
        "attention_mask": sees[:, None],
    }


@dataclass(frozen=True)
class ContrastLoss:
    """The loss: cross entropy of right tokens against rivals, weighted by the writer's probability of either, plus that
    of the next token.

    writers  language models whose errors the classifier learns to detect; the rows are divided among them
    digits   as in `draw_rivals`
    """

    writers: Sequence[Any]
    digits: torch.Tensor

    def __call__(self, model: DeepenedClassifier, batch: Batch) -> torch.Tensor:
        ids, next_ids = batch["ids"], batch["next_ids"]
        places = SolutionPlaces.from_next_ids(next_ids)
        known = batch["rivals"].gather(1, places.at)
        rivals = draw_rivals(
            self._writer_logits(ids, places), ids.gather(1, places.at), known, self.digits.to(ids.device)
        )
        hidden = model(**with_branches(ids, places, rivals.tokens))
        token_states, side = hidden.split([ids.shape[1], known.shape[1]], 1)
        language_loss = cross_entropy(
            model.language(token_states).flatten(0, 1).float(), next_ids.flatten(), ignore_index=IGNORE
        )
        odds, against = model.right_log_odds(token_states).gather(1, places.at), model.right_log_odds(side)
        has_rival = places.real & (known != NONE)
        rival_weight = (rivals.wrong + EASY) * has_rival
        judging_loss = (
            _binary_loss(odds, 1.0) * (rivals.right + EASY) * places.real + _binary_loss(against, 0.0) * rival_weight
        )
        return language_loss + judging_loss.sum() / rival_weight.sum().clamp(min=1.0)

    @torch.no_grad()
    def _writer_logits(self, ids: torch.Tensor, places: SolutionPlaces) -> torch.Tensor:
        """Returns the writers' logits `[B, S, V]` at the places."""
        parts = zip(self.writers, ids.tensor_split(len(self.writers)), strict=True)
        whole = torch.cat([writer(input_ids=part, use_cache=False).logits for writer, part in parts if len(part)])
        return whole.gather(1, (places.at - 1)[..., None].expand(-1, -1, whole.shape[-1]))


def digit_ids(tokenizer: Any, vocab_size: int) -> torch.Tensor:
    """Returns `[V]`: which tokens are one digit, with or without a space before it."""
    digits = torch.zeros(vocab_size, dtype=torch.bool)
    digits[[i for i in range(len(tokenizer)) if tokenizer.decode([i]).strip().isdigit()]] = True
    return digits


def _without_token(weights: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Weights that sum to 1, without that of `here`."""
    rest = weights.scatter(-1, here, 0.0)
    return rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)


def _binary_loss(odds: torch.Tensor, label: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(odds, torch.full_like(odds, label), reduction="none")
