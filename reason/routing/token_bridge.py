"""Lets a small model with another vocabulary write steps: the two models exchange text at the ends of steps.

Steps are translated one by one, so that the ids of a step do not depend on the following text and the small model's
prefix cache keeps its prefixes. A step that the small model wrote returns to it in its own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from decoding.core import Generation, GenerationRequest, Matrix, TokenGenerator, Tokens
from reason.prompt import Prompt
from search.steps import DelimiterSteps, split_steps

_REPLACEMENT = "\ufffd"  # the text of the bytes of an incomplete character


@dataclass(frozen=True)
class TokenBridge:
    """Translates between the vocabularies of a small and a target model.

    small_prompt, target_prompt   prompt formats and tokenizers of the two models
    target_eos                    the target model's id that ends a text; None if it has none
    """

    small_prompt: Prompt
    target_prompt: Prompt
    target_eos: int | None

    def bind(self, small: TokenGenerator, question: str, root: Tokens) -> BoundTokenBridge:
        """Returns the small model's engine for the problem whose target prompt is `root`.

        The small model gets the question in its own prompt format. A root that holds more than the question (a
        conversation) is passed on as text.
        """
        if root == self.target_prompt.encode(question):
            return BoundTokenBridge(self, small, root, self.small_prompt.encode(question))
        return BoundTokenBridge(self, small, root, self.small_prompt.encode_text(self.target_prompt.decode(root)))


class BoundTokenBridge:
    """Runs the small model on one problem, in token ids of the target model; implements `core.TokenGenerator`.

    `tokens` of a generation are the target tokenizer's ids of the generated text. Each log-probability is the mean, so
    that their sum is the small model's; so is each entropy. Log-probabilities of likely tokens are the small model's
    mean. `usage` counts the small model's tokens; `max_tokens` limits both counts.
    """

    def __init__(self, bridge: TokenBridge, small: TokenGenerator, target_root: Tokens, small_root: Tokens) -> None:
        self._bridge, self._small, self._target_root, self._small_root = bridge, small, target_root, small_root
        self._small_ids: dict[str, Tokens] = {}  # step text -> the small model's ids

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`. The request's `stop_token_ids` are the target's; the small model has its own."""
        translated = [
            replace(
                request,
                prefix=self._translate_prefix(request.prefix),
                params=replace(request.params, stop_token_ids=()),
            )
            for request in requests
        ]
        generations = await self._small.generate(translated)
        pairs = zip(generations, requests, strict=True)
        return [self._translate_generation(generation, request) for generation, request in pairs]

    def _translate_prefix(self, target_prefix: Tokens) -> Tokens:
        prompt = self._bridge.target_prompt
        rule = DelimiterSteps(delimiter=prompt.format.delimiter)
        steps = split_steps(target_prefix[len(self._target_root) :], (), prompt.decode, rule)
        return tuple(chain(self._small_root, *(self._encode_step(step.text) for step in steps)))

    def _encode_step(self, text: str) -> Tokens:
        if text not in self._small_ids:
            self._small_ids[text] = self._bridge.small_prompt.encode_continuation(text)
        return self._small_ids[text]

    def _translate_generation(self, generation: Generation, request: GenerationRequest) -> Generation:
        small_prompt, target_prompt = self._bridge.small_prompt, self._bridge.target_prompt
        ended = generation.finish == "eos"
        # a server without log-probabilities of its end leaves that out
        has_end = ended and not small_prompt.decode(generation.tokens[-1:])
        small_tokens = generation.tokens[:-1] if has_end else generation.tokens
        whole_text = small_prompt.decode(small_tokens)
        text = _cut_at_stop(whole_text.rstrip(_REPLACEMENT), request.params.stop)
        if text == whole_text:  # else the ids hold more than the step, and it is encoded anew
            self._small_ids[text] = small_tokens
        tokens = target_prompt.encode_continuation(text)
        if ended and self._bridge.target_eos is not None:
            tokens = (*tokens, self._bridge.target_eos)
        limited = tokens[: request.params.max_tokens]
        mean_logprob = sum(generation.logprobs) / max(1, len(tokens))
        top, entropies, num_tokens = generation.top_logprobs, generation.entropies, max(1, len(tokens))
        return replace(
            generation,
            tokens=limited,
            logprobs=(mean_logprob,) * len(limited) if generation.logprobs else (),
            top_logprobs=None if top is None else _repeat_mean(top, len(limited)),
            entropies=None if entropies is None else np.full(len(limited), entropies.sum() / num_tokens, np.float32),
            finish=generation.finish if limited == tokens else "length",
        )


def _repeat_mean(rows: Matrix, count: int) -> Matrix:
    """Returns the mean of the rows, `count` times."""
    mean = rows.mean(axis=0, keepdims=True) if len(rows) else np.full((1, rows.shape[1]), np.nan, np.float32)
    return np.repeat(mean, count, axis=0)


def _cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """Cuts the text after the first complete stop string; a token's text may extend beyond it.

    >>> _cut_at_stop("so 3.\\n\\nThen", ("\\n\\n",))
    'so 3.\\n\\n'
    """
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text
