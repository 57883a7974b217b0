"""Solutions of synthetic problems as steps, for a tokenizer of the bundled models."""

from __future__ import annotations

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from search.steps import DelimiterSteps, split_steps
from search.tree import Step


def encode_plain(tokenizer: PretrainedTokenizer, text: str) -> Tokens:
    """Returns the ids of the text, without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def split_solution(tokenizer: PretrainedTokenizer, solution: str) -> list[Step]:
    """Returns the steps of a solution, each token with log-probability 0."""
    tokens = encode_plain(tokenizer, solution)
    return split_steps(tokens, (0.0,) * len(tokens), lambda ids: str(tokenizer.decode(list(ids))), DelimiterSteps())
