"""Describes what a router's classifier reads: the target model's ids or text of its own, with or without authors.

A classifier with a tokenizer of its own reads text, so that one reward model makes routers for pairs of any vocabulary.
With `history=authors` every step begins with the model that wrote it, as in Arbitrage (arXiv 2512.05033, section 3.3:
"Model 0" is the small one); the step to be judged is always the small model's. Training and routing encode by the same
format, and `config.json` of a trained router names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

from decoding.core import Tokens
from decoding.validation import require_choice
from reason.models.tokenizer import PretrainedTokenizer
from reason.routing.pairs import StepPair
from reason.scorers.base import Floats, StepFormat
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.text import encode_text
from search.tree import Step

CONFIG_KEY = "router_input"
READS = ("tokens", "text")
HISTORIES = ("none", "authors")
AUTHOR_MARKS = {"draft": "Model 0: ", "target": "Model 1: "}
"""Text before a step, by its author."""


@dataclass(frozen=True, kw_only=True)
class RouterClassifier(TokenClassifier):
    """Adapter for the classifiers of `LearnedRouter`. `history`: `none`, or `authors` marks every step."""

    reads: Literal["tokens", "text"] = "tokens"
    history: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("history", self.history, HISTORIES)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Returns the adapter that a router's config.json names; those of earlier releases read ids alone."""
        return cls(**config.get(CONFIG_KEY, {}))

    def to_config(self) -> dict[str, str]:
        """Returns what `from_config` reads."""
        return {"reads": self.reads, "history": self.history}

    def build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat:
        """See `base.PrmAdapter`."""
        step_format = super().build_format(tokenizer)
        if self.history == "none":
            return step_format
        marks = {author: encode_text(tokenizer, text) for author, text in AUTHOR_MARKS.items()}
        return AuthorMarkFormat(step_format, marks)


@dataclass(frozen=True)
class AuthorMarkFormat:
    """Puts a mark of its author before every step of another format; a step of unknown origin has none."""

    step_format: StepFormat
    marks: Mapping[str, Tokens]

    def encode_prompt(self, question: str, prompt: Tokens) -> Tokens:
        """See `base.StepFormat`."""
        return self.step_format.encode_prompt(question, prompt)

    def encode_step(self, step: Step, *, first: bool) -> Tokens:
        """The mark, then the step."""
        return self.marks.get(step.model or "", ()) + self.step_format.encode_step(step, first=first)

    def score_steps(self, outputs: Sequence[Floats]) -> Floats:
        """See `base.StepFormat`."""
        return self.step_format.score_steps(outputs)


def encode_pair(pair: StepPair, step_format: StepFormat) -> Tokens:
    """Returns what a classifier reads of a pair, up to the last token of the small model's step, as routing encodes it.

    Raises: ValueError if the pair was recorded without texts and authors.
    """
    if pair.question is None or len(pair.texts) != len(pair.step_lengths) + 1:
        raise ValueError("these pairs were recorded without texts and authors of steps; collect them anew")
    begin = len(pair.prefix) - sum(pair.step_lengths)
    ends = list(accumulate(pair.step_lengths, initial=begin))
    tokens = [*(pair.prefix[a:b] for a, b in pairwise(ends)), pair.small_step]
    authors = (*pair.authors, "draft")
    ids = step_format.encode_prompt(pair.question, pair.prefix[:begin])
    for i, (step_tokens, text, author) in enumerate(zip(tokens, pair.texts, authors, strict=True)):
        ids += step_format.encode_step(Step(step_tokens, text, model=author), first=i == 0)
    return ids
