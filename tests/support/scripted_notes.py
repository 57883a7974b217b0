"""A model that tries one number after the other in its thought, and whose notes say how far it came.

One token per character; a prompt is one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from decoding.core import Tokens
from search.problem_text import ProblemText
from tests.support.toy_search import decode_bytes, toy_text

CLOSING = "</think>"


def notes_of(number: int) -> str:
    """The notes of a thought that has tried all numbers up to this one."""
    return f"none up to {number}."


def write_from(start: int, target: int) -> str:
    """The solution by a thought that has tried `start` numbers before."""
    tried = "".join(f"{number} does not fit.\n\n" for number in range(start + 1, target))
    return f"{tried}{target} fits.{CLOSING}The answer is \\boxed{{{target}}}."


def searching_writer(target: int) -> Callable[[int, Tokens], str]:
    """Returns a writer for `ToyEngine`. Behind a text that it did not write itself, and behind a request, it writes
    notes."""

    def write(seed: int, prefix: Tokens) -> str:
        del seed
        text = decode_bytes(prefix)
        prompt, _, written = text.partition("\n")
        whole = write_from(_last_of(prompt), target)
        if whole.startswith(written) and not prompt.startswith("Request"):
            return whole[len(written) :]
        return notes_of(_last_of(text))

    return write


def thinking_text() -> ProblemText:
    """The toy question for a model whose prompt opens a thought."""
    return toy_text(split=split_thought, closing=CLOSING, skipped_thought=f"\n{CLOSING}\n")


def split_thought(solution: str) -> tuple[str, str, bool]:
    """The thought of a solution, the text behind it, and whether the thought is finished."""
    thought, closing, text = solution.partition(CLOSING)
    return thought, text, bool(closing)


def is_thinking(solution: str) -> bool:
    """Whether what follows belongs to the thought."""
    return CLOSING not in solution


def _last_of(text: str) -> int:
    numbers = re.findall(r"(\d+) does not fit|none up to (\d+)", text)
    return max((int(tried or known) for tried, known in numbers), default=0)
