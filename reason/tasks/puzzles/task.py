"""Provides puzzles as a task, drawn like the other synthetic problems."""

from __future__ import annotations

from reason.tasks.puzzles.families import PUZZLES
from reason.tasks.synthetic import Synthetic


class Puzzles(Synthetic):
    """`size` different puzzles, whose settings are those of `Synthetic`; difficulty d takes up to 5 d trials.

    >>> task = Puzzles(families=["congruences"], difficulty=2, size=3)
    >>> task[0].id, task[0].question
    ('puzzles/heldout/0/0', 'Find the smallest non-negative integer x with 16 x = 1 (mod 37).')
    """

    default_name = "puzzles"
    table = PUZZLES
    checks_steps = False  # a thought may try what does not work
