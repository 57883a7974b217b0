"""Training examples: token ids with what each of them should teach."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reason.tasks.synthetic.check import check
from reason.tasks.synthetic.exercise import DELIMITER, Exercise
from reason.tasks.synthetic.pen import SlippingPen, SteadyPen
from reason.training.tokenizer import render

IGNORE = -100


@dataclass(frozen=True)
class Example:
    """One prompt with one solution, `n` tokens.

    next_ids  [n]  the token to predict after each token, IGNORE where nothing is to be learned
    verdicts  [n]  1 if everything up to and including this token is right, 0 if not, IGNORE in the prompt
    step_end  [n]  True on the last token of a step, where a reward model is read
    """

    ids: list[int]
    next_ids: list[int]
    verdicts: list[int]
    step_end: list[bool]


class Encoder:
    """Turns exercises and solutions into examples with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._encode = tokenizer.backend_tokenizer.encode  # the wrapper around it costs more than the work
        self._eos: int = tokenizer.eos_token_id
        (self._delimiter,) = self._encode(DELIMITER).ids

    def __call__(self, exercise: Exercise, solution: str, *, finished: bool = True) -> Example:
        """The example for one solution, right or wrong. Past its first mistake nothing is to be predicted."""
        wrong_at = check(exercise, solution).wrong_at
        prompt: list[int] = self._encode(render(exercise.question)).ids
        encoding = self._encode(solution)
        written: list[int] = encoding.ids
        if wrong_at is None:
            num_right = len(written)
        else:
            num_right = sum(end <= wrong_at for _, end in encoding.offsets)
        step_end = [token == self._delimiter for token in written]
        verdicts = [1] * num_right + [0] * (len(written) - num_right)
        if finished:
            written = [*written, self._eos]
            step_end.append(True)
            verdicts.append(int(wrong_at is None))
        before, after = len(prompt) - 1, len(written) - sum(verdicts)
        return Example(
            ids=prompt + written,
            next_ids=[IGNORE] * before + written[: sum(verdicts)] + [IGNORE] * (after + 1),
            verdicts=[IGNORE] * len(prompt) + verdicts,
            step_end=[False] * len(prompt) + step_end,
        )


def write_solution(exercise: Exercise, rng: random.Random, *, slip_rate: float) -> str:
    """A worked solution, with one slip of the pen at a random number with probability `slip_rate`."""
    order = rng.getrandbits(32)
    steady = SteadyPen()
    solution = exercise.write(steady, random.Random(order))
    if rng.random() >= slip_rate:
        return solution
    return exercise.write(SlippingPen(rng.randrange(steady.written), rng), random.Random(order))


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
