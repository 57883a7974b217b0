"""A model that thinks for 400 paragraphs and then answers 7, one token per character."""

from __future__ import annotations

from decoding.core import Tokens
from tests.support.toy_search import ROOT, ToyEngine

NUM_PARAGRAPHS = 400
LONG = 700
"""Tokens of the long paragraphs, of which there are ten."""


def _write_paragraph(number: int) -> str:
    length = LONG if number % 40 == 20 else 40
    opening = "Wait, " if number % 7 == 3 else ""
    interim = f"so it may be \\boxed{{{number % 5}}} " if number % 50 == 25 else ""
    return f"{opening}{interim}case {number} ".ljust(length - 3, "x") + ".\n\n"


THOUGHT = "".join(map(_write_paragraph, range(NUM_PARAGRAPHS)))
SOLUTION = f"{THOUGHT}</think>\n\nThe answer is \\boxed{{7}}."
"""What it writes behind a prompt that opens the thought: 22,600 tokens of thought, with interim answers."""


def scripted_thinker() -> ToyEngine:
    """Returns an engine that continues every prefix of the solution with the rest of it, whatever the seed."""

    def write(seed: int, prefix: Tokens) -> str:
        del seed
        return SOLUTION[len(prefix) - len(ROOT) :]

    return ToyEngine(write)
