"""Training examples, and how they are put into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reason.tasks.synthetic.exercise import CONCLUSION, DELIMITER, Exercise, strip_lead
from reason.training.tokenizer import render

IGNORE = -100  # no token to predict here
ANY, NONE = -1, -2  # any other token would be wrong here; none surely


@dataclass(frozen=True)
class Example:
    """A prompt and its right solution.

    ids             of both, end token included
    prompt_length   so many of them teach nothing
    rivals          for every token after those, what would be wrong in its place: `ANY`, `NONE`, or that token
    """

    ids: list[int]
    prompt_length: int
    rivals: list[int]


class Encoder:
    """Turns exercises and solutions into examples with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = tokenizer.backend_tokenizer.encode  # the wrapper around it costs more than the work
        self._eos: int = tokenizer.eos_token_id
        self._conclusion: int = self._encode(CONCLUSION).ids[0]

    def __call__(self, exercise: Exercise, solution: str) -> Example:
        """The example for one solution."""
        prompt: list[int] = self._encode(render(exercise.question)).ids
        encoded = self._encode(solution)
        rivals = [NONE if exercise.verifier_only else ANY] * (len(encoded.ids) + 1)
        choices = openings(solution)
        for index, (start, end) in enumerate(encoded.offsets):
            for choice in choices:
                if start < choice.stop and end > choice.start:
                    rivals[index] = self._conclusion if start == choice.start else NONE
        return Example([*prompt, *encoded.ids, self._eos], len(prompt), rivals)


def openings(solution: str) -> list[range]:
    r"""The characters that could as well be others: what a step opens with, up to the first character of what it says,
    as some problems let one choose what to work out next. When to conclude nobody can choose.

    >>> openings("So x1: 2*3=6.\n\nThe answer is 6.")
    [range(0, 4)]
    """
    found, start = [], 0
    for step in solution.split(DELIMITER):
        if not step.startswith(CONCLUSION):
            found.append(range(start, start + len(step) - len(strip_lead(step)) + 1))
        start += len(step) + len(DELIMITER)
    return found


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
