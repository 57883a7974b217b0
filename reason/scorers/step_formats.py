"""Step formats that several reward models share: text with a tag after each step, and the writing model's token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import Floats
from reason.scorers.text import encode_text, join_lines
from search.tree import Step

ScoreFunction = Callable[[Sequence[Floats]], Floats]
"""From the head's outputs over K pieces to K scores, see `StepFormat.score_steps`."""


@dataclass(frozen=True)
class TaggedTextFormat:
    """Text in which every step, tokenised alone, is followed by the ids of a tag. See `base.StepFormat`.

    encode_question  from the question to the ids before the first step
    tag              ids after each step
    score_outputs    reads the scores from the head's outputs
    single_line      whether a step is put on one line; otherwise surrounding blank lines are removed
    """

    tokenizer: PretrainedTokenizer
    encode_question: Callable[[str], Tokens]
    tag: Tokens
    score_outputs: ScoreFunction
    single_line: bool = False

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """See `base.StepFormat`."""
        del prompt
        return self.encode_question(question)

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """The step, then the tag."""
        del first
        text = join_lines(step.text) if self.single_line else step.text.strip()
        return encode_text(self.tokenizer, text) + self.tag

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """As `score_outputs`."""
        return self.score_outputs(outputs)


@dataclass(frozen=True)
class SharedTokenFormat:
    """The writing model's own token ids. See `base.StepFormat`; `score_outputs` as in `TaggedTextFormat`."""

    score_outputs: ScoreFunction

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """Returns the prompt. Raises: ValueError if it is empty."""
        del question
        if not prompt:
            raise ValueError("a scorer that shares the writer's tokens needs the prompt's token ids")
        return prompt

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """Returns the step's tokens; its last one is the delimiter or the end of the text."""
        del first
        return step.tokens

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """As `score_outputs`."""
        return self.score_outputs(outputs)
