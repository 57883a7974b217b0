"""Distillation of a draft model: batches of texts, the loss, and what it leads to."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
import torch

from decoding.core import Tokens
from reason.tasks.synthetic.draw import distinct_exercises
from reason.training.distillation import DistillationLoss, batch_texts, measure_agreement
from reason.training.draft_heads import WrittenText
from reason.training.examples import IGNORE
from tests.support.random_models import random_model

EXERCISE = next(iter(distinct_exercises(0, "train", weights={"recurrence": 1.0})))


def write(prompt: Tokens, tokens: Tokens) -> WrittenText:
    return WrittenText(prompt, tokens, EXERCISE)


TEXTS = [write((1,) * (1 + i % 3), tuple(range(2, 4 + i))) for i in range(8)]


@pytest.mark.parametrize("tokens_per_batch", [1, 20, 1000])
def test_an_epoch_has_each_text_once_and_teaches_no_prompt(tokens_per_batch: int) -> None:
    taught: Counter[Tokens] = Counter()
    for batch in batch_texts(TEXTS, tokens_per_batch, 0, seed=3):
        rows, longest = batch["ids"].shape
        assert rows * longest <= max(tokens_per_batch, 13)
        for ids, next_ids in zip(batch["ids"], batch["next_ids"], strict=True):
            places = (next_ids != IGNORE).nonzero()[:, 0]
            assert torch.equal(next_ids[places], ids[places + 1])
            taught[tuple(next_ids[places].tolist())] += 1
        if sum(taught.values()) == len(TEXTS):
            break
    assert taught == Counter(text.tokens for text in TEXTS)


def test_a_model_agrees_with_itself_and_less_with_others() -> None:
    one, other = random_model("qwen2"), random_model("llama")
    assert measure_agreement(one, one, TEXTS) == pytest.approx(1)
    shared = measure_agreement(one, other, TEXTS)
    assert shared < 0.9
    assert measure_agreement(other, one, TEXTS) == pytest.approx(shared)


def test_a_student_comes_closer_to_its_teacher() -> None:
    teacher, student = random_model("qwen2"), random_model("llama")
    loss_of, before = DistillationLoss(teacher), measure_agreement(student, teacher, TEXTS)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for batch in islice(batch_texts(TEXTS, 200, 0, seed=0), 60):
        optimizer.zero_grad()
        loss_of(student, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert measure_agreement(student, teacher, TEXTS) > before + 0.2
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
