"""Makes training examples of exercises and groups them into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reason.tasks.synthetic.exercise import CONCLUSION, DELIMITER, Exercise, strip_lead
from reason.training.tokenizer import render_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORE = -100  # no token to predict here
EMPHASIS = 30.0
ANY, NONE = -1, -2  # in place of a rival: any other token is wrong here; no other token is surely wrong


@dataclass(frozen=True)
class TrainingExample:
    """A prompt with a correct solution.

    ids             token ids of both, end token included
    prompt_length   number of ids at the beginning without a loss
    untaught        indexes of further ids without a loss: planted slips, texts that a program puts in
    rivals          per token after those, a wrong token in its place, or `ANY`, or `NONE`
    emphasis        indexes of ids whose loss counts `EMPHASIS` times: short replies behind long texts
    """

    ids: list[int]
    prompt_length: int
    rivals: list[int]
    untaught: Sequence[int] = ()
    emphasis: Sequence[int] = ()


class ExampleEncoder:
    """Encodes exercises with solutions as examples."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode  # its wrapper takes longer than itself
        self._eos: int = tokenizer.eos_token_id
        self._conclusion: int = self._encode(CONCLUSION).ids[0]

    def __call__(self, exercise: Exercise, solution: str) -> TrainingExample:
        """Returns the example of one solution."""
        prompt: list[int] = self._encode(render_prompt(exercise.question)).ids
        encoded = self._encode(solution)
        rivals = [NONE if exercise.verifier_only else ANY] * (len(encoded.ids) + 1)
        choices = free_openings(solution)
        for index, (start, end) in enumerate(encoded.offsets):
            for choice in choices:
                if start < choice.stop and end > choice.start:
                    rivals[index] = self._conclusion if start == choice.start else NONE
        return TrainingExample([*prompt, *encoded.ids, self._eos], len(prompt), rivals)


def free_openings(solution: str) -> list[range]:
    r"""Returns the characters in whose place others are right too: each step's opening up to its first character of
    content, because some problems allow several next steps. The conclusion is no such choice.

    >>> free_openings("So x1: 2*3=6.\n\nThe answer is 6.")
    [range(0, 4)]
    """
    ranges, start = [], 0
    for step in solution.split(DELIMITER):
        if not step.startswith(CONCLUSION):
            ranges.append(range(start, start + len(step) - len(strip_lead(step)) + 1))
        start += len(step) + len(DELIMITER)
    return ranges


def batch_examples(
    examples: Sequence[TrainingExample], tokens_per_batch: int, rng: random.Random
) -> Iterator[list[TrainingExample]]:
    """Yields batches of examples of similar length, at most `tokens_per_batch` padded tokens each, in random order."""
    ready: list[list[TrainingExample]] = []
    batch: list[TrainingExample] = []
    for example in sorted(examples, key=lambda e: len(e.ids)):
        if batch and (len(batch) + 1) * len(example.ids) > tokens_per_batch:
            ready.append(batch)
            batch = []
        batch.append(example)
    ready.append(batch)
    rng.shuffle(ready)
    yield from ready
