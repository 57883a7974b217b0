"""Makes drills: unrelated sums in the form of trials, which teach arithmetic faster than whole thoughts do."""

from __future__ import annotations

import random

from reason.tasks.puzzles.puzzle import subtract_modulus, verdict
from reason.tasks.synthetic.exercise import ExactWriter

DRILL_QUESTION = "Fill in the sums."
_LINES = range(10, 21)
_LARGEST_MODULUS = 97


def draw_drill(rng: random.Random) -> tuple[str, list[range]]:
    """Returns the text of a drill and the characters of its results, which alone are to be learned."""
    text, results = "", []
    for _ in range(rng.choice(_LINES)):
        modulus = min(rng.randint(11, _LARGEST_MODULUS) for _ in range(2))
        before, factor = rng.randrange(modulus), rng.randint(1, modulus - 1)
        if before + factor < modulus and rng.random() < 0.7:  # most lines have two sums
            before, factor = modulus - 1 - before, modulus - factor
        total = before + factor
        work, _ = subtract_modulus(total, modulus, ExactWriter())
        line = f"x={rng.randint(1, _LARGEST_MODULUS)}: {before}+{factor}={total}{work}{verdict(False)}\n"
        start = 0
        while (start := line.find("=", start) + 1) > 0:
            if line[start - 2] != "x":
                end = line.index(",", start)
                results.append(range(len(text) + start, len(text) + end))
        text += line
    return text, results
