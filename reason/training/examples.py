"""Training examples, and how they are put into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reason.tasks.synthetic.exercise import DELIMITER, Exercise, strip_lead
from reason.training.tokenizer import render

IGNORE = -100  # no token to predict here


@dataclass(frozen=True)
class Example:
    """A prompt and its right solution.

    ids             of both, end token included
    prompt_length   so many of them teach nothing
    forced          for every token after those, whether any other would be wrong in its place
    """

    ids: list[int]
    prompt_length: int
    forced: list[bool]


class Encoder:
    """Turns exercises and solutions into examples with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = tokenizer.backend_tokenizer.encode  # the wrapper around it costs more than the work
        self._eos: int = tokenizer.eos_token_id

    def __call__(self, exercise: Exercise, solution: str) -> Example:
        """The example for one solution."""
        prompt: list[int] = self._encode(render(exercise.question)).ids
        encoded = self._encode(solution)
        choices = [] if exercise.verifier_only else openings(solution)
        forced = [
            not exercise.verifier_only and not any(start < choice.stop and end > choice.start for choice in choices)
            for start, end in encoded.offsets
        ]
        return Example([*prompt, *encoded.ids, self._eos], len(prompt), [*forced, not exercise.verifier_only])


def openings(solution: str) -> list[range]:
    r"""The characters of a solution that could as well be others: what a step opens with, up to the first character of
    what it says, as some problems let one choose what to work out next.

    >>> openings("So x1: 2*3=6.\n\nThe answer is 6.")
    [range(0, 4), range(15, 16)]
    """
    found, start = [], 0
    for step in solution.split(DELIMITER):
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
