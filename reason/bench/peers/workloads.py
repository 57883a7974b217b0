"""Makes the prompts of the comparison with other engines."""

from __future__ import annotations

from decoding.core import Tokens
from reason.models.tokenizer import PretrainedTokenizer
from reason.tasks.synthetic import Synthetic


def make_prompts(tokenizer: PretrainedTokenizer, length: int, count: int) -> list[Tokens]:
    """Returns `count` different prompts of exactly `length` tokens: questions of the synthetic task."""
    prompts: list[Tokens] = []
    for seed in range(count):
        text: list[int] = []
        size = 8
        while len(text) < length:
            questions = (problem.question for problem in Synthetic(size=size, seed=seed))
            text = tokenizer.encode("\n\n".join(questions), add_special_tokens=False)
            size *= 2
        prompts.append(tuple(text[:length]))
    return prompts
