"""Training examples, and how they are put into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reason.tasks.synthetic.exercise import Exercise
from reason.training.tokenizer import render

IGNORE = -100  # no token to predict here


@dataclass(frozen=True)
class Example:
    """The ids of a prompt and its solution, end token included. The first `prompt_length` teach nothing."""

    ids: list[int]
    prompt_length: int


class Encoder:
    """Turns exercises and solutions into examples with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = tokenizer.backend_tokenizer.encode  # the wrapper around it costs more than the work
        self._eos: int = tokenizer.eos_token_id

    def __call__(self, exercise: Exercise, solution: str) -> Example:
        """The example for one solution."""
        prompt: list[int] = self._encode(render(exercise.question)).ids
        return Example([*prompt, *self._encode(solution).ids, self._eos], len(prompt))


def batches(examples: Sequence[Example], tokens_per_batch: int, rng: random.Random) -> Iterator[list[Example]]:
    """Examples of similar length together, at most `tokens_per_batch` padded tokens each, in random order."""
    ready: list[list[Example]] = []
    batch: list[Example] = []
    for example in sorted(examples, key=lambda e: len(e.ids)):
        if batch and (len(batch) + 1) * len(example.ids) > tokens_per_batch:
            ready.append(batch)
            batch = []
        batch.append(example)
    ready.append(batch)
    rng.shuffle(ready)
    yield from ready
