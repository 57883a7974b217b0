"""Draws problems from a seed, from a training or a held-out split that cannot overlap."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Literal

from reason.tasks.synthetic.exercise import Exercise
from reason.tasks.synthetic.families import FAMILIES

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
_HELD_OUT_IN = 8  # one question in eight is held out
_MAX_REPEATED = 10_000  # draws in a row without a new question


def split_of(question: str) -> Split:
    """Returns the split of a question; it depends on the text alone, so the splits cannot share a question."""
    return "train" if hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % _HELD_OUT_IN else "heldout"


def draw_exercise(
    rng: random.Random,
    split: Split,
    *,
    weights: Mapping[str, float],
    difficulties: tuple[int, int] | None = None,
    families: Mapping[str, type[Exercise]] = FAMILIES,
) -> Exercise:
    """Draws one problem of `split`: one of `families` by weight, then a difficulty.

    `difficulties` are the lowest and highest, clipped to those of a family and drawn evenly; None draws
    the smaller of two, because short problems are cheap and teach the primitives.
    """
    while True:
        family = families[rng.choices(list(weights), list(weights.values()))[0]]
        low, high = family.difficulties[0], family.difficulties[-1]
        if difficulties is None:
            difficulty = min(rng.randint(low, high), rng.randint(low, high))
        else:
            difficulty = rng.randint(min(max(low, difficulties[0]), high), max(min(high, difficulties[1]), low))
        exercise = family.generate(rng, difficulty)
        if split_of(exercise.question) == split:
            return exercise


def distinct_exercises(
    seed: int,
    split: Split,
    *,
    weights: Mapping[str, float],
    difficulties: tuple[int, int] | None = None,
    families: Mapping[str, type[Exercise]] = FAMILIES,
) -> Iterator[Exercise]:
    """Yields problems of `split`, no question twice; the same on every machine for equal arguments.

    It ends when so many draws in a row bring nothing new that there is no other problem.
    """
    rng = random.Random(seed)
    seen_questions: set[str] = set()
    num_repeated = 0
    while num_repeated < _MAX_REPEATED:
        exercise = draw_exercise(rng, split, weights=weights, difficulties=difficulties, families=families)
        num_repeated += 1
        if exercise.question not in seen_questions:
            num_repeated = 0
            seen_questions.add(exercise.question)
            yield exercise
