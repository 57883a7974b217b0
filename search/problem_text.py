"""What a strategy needs of a problem to write prompts of its own: its question, and functions from text to ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.core import Tokens


@dataclass(frozen=True, kw_only=True)
class ProblemText:
    """Question of one problem, and how texts become prompts of its model.

    question         text of the question
    render_question  converts a question to the ids of a prompt, exactly as the problem's question was converted
    render_request   the same for a request that is no question: without the instructions about the answer
    encode           converts a text to ids that go on behind generated ones
    split            returns the thought of a solution, the text behind it, and whether the thought is finished
    closing          text that ends a thought; "" for a model without thoughts
    skipped_thought  text that a model with thoughts finds at the beginning of its turn when it is to write none; "" for
                     a model without thoughts, and where the engine cannot begin a turn
    begins_behind    whether the prompt has an empty thought already, so that none is written
    """

    question: str
    render_question: Callable[[str], Tokens]
    render_request: Callable[[str], Tokens]
    encode: Callable[[str], Tokens]
    split: Callable[[str], tuple[str, str, bool]]
    closing: str = ""
    skipped_thought: str = ""
    begins_behind: bool = False
