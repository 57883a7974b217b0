"""Trains a draft model on texts of the target, towards the target's distribution after every token.

Zhou et al. 2023, DistillSpec (arXiv 2310.08461), with the forward KL divergence on texts of the teacher.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from reason.training.draft_heads import WrittenText
from reason.training.examples import IGNORE
from reason.training.loop import Batch


class DistillationLoss:
    """The mean cross entropy of the student against the teacher's distribution, over the tokens of the texts.

    teacher  a causal language model of the same vocabulary; *mutated*: it is frozen
    """

    def __init__(self, teacher: Any) -> None:
        self._teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: Any, batch: Batch) -> torch.Tensor:
        is_text = batch["next_ids"] != IGNORE
        with torch.no_grad():
            p_WV = self._teacher(input_ids=batch["ids"], use_cache=False).logits[is_text].float().softmax(-1)
        return cross_entropy(model(input_ids=batch["ids"], use_cache=False).logits[is_text].float(), p_WV)


def batch_texts(texts: Sequence[WrittenText], tokens_per_batch: int, pad_id: int, seed: int) -> Iterator[Batch]:
    """Yields endless batches of at most `tokens_per_batch` padded tokens, or of one text; each epoch has its order.

    A batch has `ids` `[B, T]`, padded on the right, and `next_ids`, which are `IGNORE` in prompts and at the end.
    """
    rng = random.Random(seed)
    while True:
        chosen: list[WrittenText] = []
        longest = 0
        for text in rng.sample(texts, len(texts)):
            longest = max(longest, _length(text))
            if chosen and (len(chosen) + 1) * longest > tokens_per_batch:
                yield _collate(chosen, pad_id)
                chosen, longest = [], _length(text)
            chosen.append(text)
        yield _collate(chosen, pad_id)


def _length(text: WrittenText) -> int:
    return len(text.prompt) + len(text.tokens)


def _collate(texts: Sequence[WrittenText], pad_id: int) -> Batch:
    longest = max(map(_length, texts))
    ids = torch.full((len(texts), longest), pad_id)
    next_ids = torch.full((len(texts), longest), IGNORE)
    for row, text in enumerate(texts):
        end = _length(text)
        ids[row, :end] = torch.tensor((*text.prompt, *text.tokens))
        next_ids[row, len(text.prompt) - 1 : end - 1] = ids[row, len(text.prompt) : end]
    return {"ids": ids, "next_ids": next_ids}


def measure_agreement(student: Any, teacher: Any, texts: Sequence[WrittenText]) -> float:
    """Returns the mean probability that a token of the student, after a text's tokens so far, is accepted: the sum of
    min(p, q) over the vocabulary."""
    total = count = 0.0
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([[*text.prompt, *text.tokens]], device=student.device)
            p_WV, q_WV = (
                model(input_ids=ids, use_cache=False).logits[0, len(text.prompt) - 1 : -1].float().softmax(-1)
                for model in (teacher, student)
            )
            total, count = total + float(torch.minimum(p_WV, q_WV).sum()), count + len(text.tokens)
    return total / count
