"""Makes drills: unrelated sums in the form of trials, which teach arithmetic faster than whole thoughts do."""

from __future__ import annotations

import random
import re

from reason.tasks.puzzles.puzzle import write_modular_sum
from reason.tasks.synthetic.exercise import ExactWriter

DRILL_QUESTION = "Fill in the sums."
_LINES = range(10, 21)
_MODULI = range(5, 38)
_SHARE_OF_HITS = 0.3  # in whole thoughts one trial of many is one
_LARGEST_SUM = 149
_TAUGHT = re.compile(r"(?:\+\d+=(\d+))?: \d+\+\d+=(\d+), \d+([<-])\d+(?:=(\d+))?; \d+-\d+=(-?\d+)")


def draw_drill(rng: random.Random) -> tuple[str, list[range]]:
    """Returns the text of a drill and the characters of its results and comparisons, which alone are to be learned."""
    lines = []
    modulus = rng.choice(_MODULI)
    for _ in range(rng.choice(_LINES)):
        before, addend = rng.randrange(modulus), rng.randrange(1, modulus)
        left = (before + addend) % modulus
        residue = left if rng.random() < _SHARE_OF_HITS else rng.randrange(modulus)
        work, _, _ = write_modular_sum(before, addend, modulus, residue, ExactWriter())
        stride = rng.choice(_MODULI)
        candidate = rng.randrange(_LARGEST_SUM - stride)
        label = f"x={stride}" if rng.random() < 0.5 else f"{candidate}+{stride}={candidate + stride}"
        lines.append(f"{label}: {work}\n")
    text = "".join(lines)
    spans = (match.span(group) for match in _TAUGHT.finditer(text) for group in range(1, 6))
    return text, [range(start, end) for start, end in spans if start >= 0]
